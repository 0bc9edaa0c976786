use std::net::{IpAddr, Ipv6Addr};

/// Returns the part of an address that identifies one client among others: an IPv4 address, or the
/// /64 network of an IPv6 address, in which a client can choose any address.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cannot_change_its_network_by_another_address() {
        for (address, network) in [
            ("10.0.0.2", "10.0.0.2"),
            ("::ffff:10.0.0.2", "10.0.0.2"),
            ("2001:db8:0:1:2:3:4:5", "2001:db8:0:1::"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(client_network(address).to_string(), network);
        }
    }
}
