//! Controllers: observe, decide in core, apply.
