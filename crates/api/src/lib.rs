//! Wire types of the Concierge APIs: serde in, serde out.
