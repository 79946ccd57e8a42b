//! A Parquet file of intervals: one row each, for analytical engines.

use std::io;
use std::io::Write;
use std::sync::Arc;

use export::store::Interval;
use export::store::Until;
use parquet::basic::Compression;
use parquet::basic::ZstdLevel;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::Origin;

/// The columns; `put` fills them in this order.
const SCHEMA: &str = "
message interval {
    required binary what (UTF8);
    required binary realm (UTF8);
    optional binary pool (UTF8);
    optional binary subscriber (UTF8);
    optional binary inner_address (UTF8);
    optional binary protocol (UTF8);
    optional int32 internal_port (INTEGER(16, false));
    required binary external_address (UTF8);
    required int32 first_port (INTEGER(16, false));
    required int32 last_port (INTEGER(16, false));
    optional binary remote_address (UTF8);
    optional int32 remote_port (INTEGER(16, false));
    required int64 since (TIMESTAMP(MICROS, true));
    required boolean since_exact;
    optional int64 until (TIMESTAMP(MICROS, true));
    required boolean until_exact;
    required boolean ended_by_restart;
    required boolean certain;
    optional int64 known_since (TIMESTAMP(MICROS, true));
    optional int64 known_until (TIMESTAMP(MICROS, true));
    required boolean clock_set_back;
    required binary store (UTF8);
    optional binary machine (UTF8);
    required binary run (UTF8);
    required int64 started;
    required int64 version;
}";
/// Rows of a file that are in memory before they are written: some tens of megabytes.
pub(crate) const GROUP_ROWS_OF_FILE: usize = 256 << 10;
/// The same of the API, which may write several files at a time: some megabytes each.
pub(crate) const GROUP_ROWS_OF_STREAM: usize = 32 << 10;

/// The values of a column. Of an optional one, `levels` says which rows have one.
struct Column {
    values: Values,
    levels: Option<Vec<i16>>,
}

enum Values {
    Boolean(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Text(Vec<ByteArray>),
}

/// A file that is written, from its front to its end.
pub(crate) struct ParquetFile<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    columns: Vec<Column>,
    rows: usize,
    group_rows: usize,
}

fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    }
}

impl<W: Write + Send> ParquetFile<W> {
    /// Begins a file with as many rows in each group.
    pub(crate) fn begin(file: W, group_rows: usize) -> io::Result<ParquetFile<W>> {
        let schema = Arc::new(parse_message_type(SCHEMA).map_err(failed)?);
        let level = ZstdLevel::try_new(3).map_err(failed)?;
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(level)).build();
        let columns = schema.get_fields().iter().map(|field| {
            use parquet::basic::Type;
            let values = match field.get_physical_type() {
                Type::BOOLEAN => Values::Boolean(Vec::new()),
                Type::INT32 => Values::Int32(Vec::new()),
                Type::INT64 => Values::Int64(Vec::new()),
                _ => Values::Text(Vec::new()),
            };
            Column { values, levels: field.is_optional().then(Vec::new) }
        });
        let columns = columns.collect();
        let writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).map_err(failed)?;
        Ok(ParquetFile { writer, columns, rows: 0, group_rows })
    }

    pub(crate) fn put(&mut self, origin: &Origin, interval: &Interval) -> io::Result<()> {
        let holder = &interval.holder;
        let (until, is_restart) = match holder.until {
            Until::Open => (None, false),
            Until::Ended(until) | Until::Lost(until) => (Some(until), false),
            Until::Restart(until) => (Some(until), true),
        };
        let text = |text: &str| Some(Cell::Text(text.as_bytes().to_vec().into()));
        let port = |port: u16| Some(Cell::Int32(port.into()));
        let time = |unix_us: u64| Cell::Int64(i64::try_from(unix_us).unwrap_or(i64::MAX));
        let row = [
            text(holder.what.name()),
            text(&lookup::stored::realm_of(holder)),
            holder.pool_name.as_deref().and_then(text),
            holder.subscriber.address_text().as_deref().and_then(text),
            holder.subscriber.inner().and_then(|inner| text(&inner.to_string())),
            holder.protocol.and_then(|protocol| text(protocol.name())),
            holder.internal_port.and_then(port),
            text(&holder.external.to_string()),
            port(holder.first_port),
            port(holder.last_port),
            holder.remote.and_then(|(address, _)| text(&address.to_string())),
            holder.remote.and_then(|(_, remote)| port(remote)),
            Some(time(holder.since_us)),
            Some(Cell::Boolean(holder.is_since_exact)),
            until.map(time),
            Some(Cell::Boolean(matches!(holder.until, Until::Ended(_)))),
            Some(Cell::Boolean(is_restart)),
            Some(Cell::Boolean(holder.is_certain)),
            interval.known_us.map(|(since_us, _)| time(since_us)),
            interval.known_us.map(|(_, until_us)| time(until_us)),
            Some(Cell::Boolean(interval.has_time_twice)),
            text(&origin.store),
            origin.machine.as_deref().and_then(text),
            text(&format!("{:032x}", u128::from_be_bytes(interval.run))),
            Some(time(interval.started_ms)),
            Some(time(origin.version)),
        ];
        for (column, cell) in self.columns.iter_mut().zip(row) {
            column.push(cell);
        }
        self.rows += 1;
        if self.rows >= self.group_rows { self.write_group() } else { Ok(()) }
    }

    fn write_group(&mut self) -> io::Result<()> {
        self.rows = 0;
        let mut group = self.writer.next_row_group().map_err(failed)?;
        let mut columns = self.columns.iter_mut();
        while let (Some(column), Some(mut writer)) = (columns.next(), group.next_column().map_err(failed)?) {
            column.write(writer.untyped()).map_err(failed)?;
            writer.close().map_err(failed)?;
        }
        group.close().map_err(failed)?;
        Ok(())
    }

    /// Writes the rest and the footer.
    pub(crate) fn end(mut self) -> io::Result<()> {
        if self.rows > 0 {
            self.write_group()?;
        }
        self.writer.close().map_err(failed)?;
        Ok(())
    }
}

/// A value of one row.
enum Cell {
    Boolean(bool),
    Int32(i32),
    Int64(i64),
    Text(ByteArray),
}

impl Column {
    fn push(&mut self, cell: Option<Cell>) {
        if let Some(levels) = &mut self.levels {
            levels.push(i16::from(cell.is_some()));
        }
        match (&mut self.values, cell) {
            (Values::Boolean(values), Some(Cell::Boolean(value))) => values.push(value),
            (Values::Int32(values), Some(Cell::Int32(value))) => values.push(value),
            (Values::Int64(values), Some(Cell::Int64(value))) => values.push(value),
            (Values::Text(values), Some(Cell::Text(value))) => values.push(value),
            _ => {}
        }
    }

    /// Writes the values and forgets them.
    fn write(&mut self, writer: &mut ColumnWriter<'_>) -> Result<(), ParquetError> {
        let levels = self.levels.as_deref();
        match (writer, &mut self.values) {
            (ColumnWriter::BoolColumnWriter(writer), Values::Boolean(values)) => {
                writer.write_batch(values, levels, None)?;
                values.clear();
            }
            (ColumnWriter::Int32ColumnWriter(writer), Values::Int32(values)) => {
                writer.write_batch(values, levels, None)?;
                values.clear();
            }
            (ColumnWriter::Int64ColumnWriter(writer), Values::Int64(values)) => {
                writer.write_batch(values, levels, None)?;
                values.clear();
            }
            (ColumnWriter::ByteArrayColumnWriter(writer), Values::Text(values)) => {
                writer.write_batch(values, levels, None)?;
                values.clear();
            }
            _ => return Err(ParquetError::General("a column has another type".to_owned())),
        }
        if let Some(levels) = &mut self.levels {
            levels.clear();
        }
        Ok(())
    }
}
