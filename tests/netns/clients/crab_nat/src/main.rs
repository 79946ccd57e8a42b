//! Asks for a port by the crate `crab_nat`: by PCP, or by NAT-PMP where there is no PCP. Says what
//! it got, renews it, and gives it back when its input ends.
//!
//! ```text
//! crab-nat-client GATEWAY OWN-ADDRESS tcp|udp PORT
//! ```

use std::error::Error;
use std::io::Read;
use std::net::IpAddr;
use std::num::NonZeroU16;

use crab_nat::InternetProtocol;
use crab_nat::PortMapping;
use crab_nat::PortMappingOptions;
use crab_nat::PortMappingType;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [gateway, own, protocol, port] = words.as_slice() else { return Err("four words".into()) };
    let (gateway, own): (IpAddr, IpAddr) = (gateway.parse()?, own.parse()?);
    let protocol = if protocol == "tcp" { InternetProtocol::Tcp } else { InternetProtocol::Udp };
    let port: NonZeroU16 = port.parse()?;
    let mut mapping = PortMapping::new(gateway.into(), own, protocol, port, PortMappingOptions::default()).await?;
    let first = mapping.external_port();
    mapping.renew().await?;
    if mapping.external_port() != first {
        return Err("the renewal has another port".into());
    }
    let by = match mapping.mapping_type() {
        PortMappingType::NatPmp => "nat_pmp",
        PortMappingType::Pcp { .. } => "pcp",
    };
    println!("mapped {by} {} {}", mapping.external_port(), mapping.lifetime());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    mapping.try_drop().await.map_err(|(failure, _)| failure)?;
    println!("dropped");
    Ok(())
}
