//! The whole product at work: the demo program and the end-to-end tests.
