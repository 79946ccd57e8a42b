//! The natrix commands and the terminal dashboard; talks to the control socket only.
//!
//! [`parse`] reads the command line. The binary runs the commands that need the engine (`check`,
//! `run`, `replay`, `bench`, `lab`); all others are a [`ClientCommand`] for [`execute`].

mod arguments;
mod ask;
mod change;
mod complete;
mod error;
mod execute;
mod human;
mod lab_arguments;
mod log_arguments;
mod output;
mod pcap;
mod show;
mod table;
mod top;
mod trace;
mod usage;

pub use arguments::Arguments;
pub use arguments::BenchAllocation;
pub use arguments::BenchArrival;
pub use arguments::BenchCommand;
pub use arguments::BenchDriver;
pub use arguments::BenchEngine;
pub use arguments::BenchEvent;
pub use arguments::BenchEvents;
pub use arguments::BenchForward;
pub use arguments::BenchLog;
pub use arguments::BenchMode;
pub use arguments::BenchRules;
pub use arguments::BenchScaling;
pub use arguments::BenchStalls;
pub use arguments::BenchTables;
pub use arguments::Check;
pub use arguments::ClientCommand;
pub use arguments::Command;
pub use arguments::Find;
pub use arguments::Replay;
pub use arguments::Run;
pub use arguments::TokenArguments;
pub use ask::print_found;
pub use complete::completions;
pub use error::CliError;
pub use execute::execute;
pub use lab_arguments::LabAllocation;
pub use lab_arguments::LabCapacity;
pub use lab_arguments::LabCeiling;
pub use lab_arguments::LabCommand;
pub use lab_arguments::LabCps;
pub use lab_arguments::LabDevice;
pub use lab_arguments::LabDirection;
pub use lab_arguments::LabFrames;
pub use lab_arguments::LabJoin;
pub use lab_arguments::LabLatency;
pub use lab_arguments::LabPorts;
pub use lab_arguments::LabProbe;
pub use lab_arguments::LabProbePart;
pub use lab_arguments::LabProbed;
pub use lab_arguments::LabProtocol;
pub use lab_arguments::LabReport;
pub use lab_arguments::LabRules;
pub use lab_arguments::LabStudies;
pub use lab_arguments::LabStudy;
pub use lab_arguments::LabStudyName;
pub use lab_arguments::LabTest;
pub use lab_arguments::LabTransport;
pub use log_arguments::LogAllocation;
pub use log_arguments::LogCommand;
pub use log_arguments::LogDir;
pub use log_arguments::LogExport;
pub use log_arguments::LogFormat;
pub use log_arguments::LogGenerate;
pub use log_arguments::LogHead;
pub use log_arguments::LogSize;
pub use log_arguments::LogStat;
pub use log_arguments::LogVerify;
pub use table::Align;
pub use table::Table;
pub use table::write_table;
pub use usage::parse;
pub use usage::try_parse_from;

/// Exit status of a wrong command line; any other failure exits with 1.
pub const EXIT_USAGE: u8 = 2;
