//! A real control plane and other real parts for tests and the demo.
