//! Writes the captures that are kept in the repository. A test shows that the files are what this
//! program writes.

use std::process::ExitCode;

use testkit::captures;

fn main() -> ExitCode {
    for capture in captures::all() {
        if let Err(error) = capture.keep() {
            eprintln!("captures: {}: {error}", capture.path);
            return ExitCode::FAILURE;
        }
        println!("{}: {} packets", capture.path, capture.packets.len());
    }
    ExitCode::SUCCESS
}
