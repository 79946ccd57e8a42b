//! One instance to a device: two on the same interface would both answer, and translate each packet
//! twice.

use std::os::unix::net::UnixStream;
use std::path::Path;

use config::Config;
use packet_io::Claims;
use packet_io::Held;

/// A port whose device another process has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("port \"{port}\": {held}; {REMEDY}")]
pub struct PortTaken {
    /// Its name in the configuration.
    pub port: String,
    /// The device and the process.
    pub held: Held,
}

/// What to do about it.
pub const REMEDY: &str = "stop it, or give this port another device";

fn drivers(config: &Config) -> impl Iterator<Item = &str> {
    config.ports.iter().map(|port| port.driver.as_str())
}

fn name_of(config: &Config, port: usize) -> String {
    config.ports.get(port).map(|port| port.name.clone()).unwrap_or_default()
}

/// Claims the devices of all ports for this process, until the claims are dropped.
///
/// # Errors
/// Another process has one of them.
pub fn take(config: &Config) -> Result<Claims, PortTaken> {
    Claims::take(drivers(config)).map_err(|held| PortTaken { port: name_of(config, held.port), held })
}

/// The ports whose devices processes have now.
pub fn taken(config: &Config) -> Vec<PortTaken> {
    let held = packet_io::held(drivers(config)).into_iter();
    held.map(|held| PortTaken { port: name_of(config, held.port), held }).collect()
}

/// The process that answers on a control socket; the inner value is None if its number is not
/// known.
pub fn process_at(socket: &Path) -> Option<Option<u32>> {
    UnixStream::connect(socket).ok().map(|stream| packet_io::peer_pid(&stream))
}

/// Why a device has no claim, and what follows.
pub fn warnings(claims: &Claims, config: &Config) -> Vec<String> {
    let warning = |one: &packet_io::Unclaimed| {
        format!(
            "port \"{}\": {} is not protected from a second instance: {}; free the socket @natrix/device/{} and restart",
            name_of(config, one.port),
            one.device,
            one.reason,
            one.device
        )
    };
    claims.unclaimed().iter().map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(device: &str) -> Config {
        let text = format!(
            "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"net_ring0\"\naddresses = [\"100.64.0.1/24\"]\n\
             [[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"net_af_packet0,iface={device}\"\n\
             addresses = [\"192.0.2.2/30\"]\n\
             [[pool]]\nname = \"main\"\naddresses = [\"203.0.113.1\"]\nsubscribers = [\"100.64.0.0/24\"]\n"
        );
        config::parse(&text, "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    #[test]
    fn a_taken_device_is_refused_with_its_port() {
        let device = format!("cl{}", std::process::id());
        let config = config(&device);
        assert_eq!(taken(&config), []);
        let claims = take(&config).unwrap();
        assert!(warnings(&claims, &config).is_empty());
        let [found] = <[PortTaken; 1]>::try_from(taken(&config)).unwrap();
        assert_eq!((found.port.as_str(), &found.held.device), ("out", &device));
        let pid = std::process::id();
        let text = format!(
            "port \"out\": another natrix already runs on {device} (pid {pid}); stop it, or give this port another device"
        );
        assert_eq!(take(&config).unwrap_err().to_string(), text);
        drop(claims);
        assert!(take(&config).is_ok());
    }
}
