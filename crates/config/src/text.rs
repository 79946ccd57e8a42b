//! The bytes of a configuration file as text.

use crate::fault::Fault;

/// What a file says. `file_name` stands in the fault.
///
/// # Errors
/// It is not UTF-8, as TOML has to be; the fault names the line.
pub fn text(bytes: Vec<u8>, file_name: &str) -> Result<String, Box<Fault>> {
    String::from_utf8(bytes).map_err(|error| {
        let end = error.utf8_error().valid_up_to();
        let (before, after) = error.as_bytes().split_at(end);
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Box::new(Fault {
            file: file_name.to_owned(),
            line: u32::try_from(line).ok(),
            object: String::new(),
            problem: "is not UTF-8".to_owned(),
            seen: after.first().map(|byte| format!("byte {byte:#04x}")).unwrap_or_default(),
            remedy: "save the file as UTF-8, or write this line in plain ASCII".to_owned(),
        })
    })
}
