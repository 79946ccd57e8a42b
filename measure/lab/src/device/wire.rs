//! Nothing at all between the tester's ports: what it can do itself.

use core::time::Duration;

use super::Device;
use super::DeviceError;
use crate::result::Settings;

/// A wire. It has no table and does not answer; frames come out as they went in.
#[derive(Clone, Copy, Debug)]
pub struct Wire;

impl Device for Wire {
    fn name(&self) -> &'static str {
        "wire"
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn empty(&mut self) -> Result<Duration, DeviceError> {
        Ok(Duration::ZERO)
    }

    fn sessions(&mut self) -> Result<Option<u64>, DeviceError> {
        Ok(Some(0))
    }

    fn settings(&self) -> Settings {
        Settings::default()
    }
}
