//! The pinniped command line.
