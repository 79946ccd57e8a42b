pub mod class;
pub(crate) mod gateways;
pub mod origin;
pub mod rate_limit;
pub mod redirection;
pub(crate) mod refused;
pub mod rules;
pub mod stand_in;
