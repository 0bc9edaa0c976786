//! Who is asking: webhook, TokenReview, certificates, front proxy.
