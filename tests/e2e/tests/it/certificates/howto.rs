//! Runs the commands of docs/howto/external-certificates.md.

use super::cert_manager::{back_to_generated, with_cert_manager};
use crate::howto_page;

const PAGE: &str = "docs/howto/external-certificates.md";

#[tokio::test]
async fn the_page_configures_an_external_certificate_and_removes_it() {
    let Some(installed) = with_cert_manager("the page about external certificates").await else { return };
    let blocks = howto_page::of(PAGE);
    assert!(blocks.len() > 10, "{} has only {} blocks", PAGE, blocks.len());
    let output = howto_page::run(&installed, "howto", &blocks).await;
    if output.is_err() {
        // Restores the original state for the other tests.
        back_to_generated(&installed).await.unwrap();
    }
    let printed = output.unwrap();
    let valid = "\nTrue Valid";
    assert!(printed.contains(valid), "the certificate was not found to be good: {printed}");
    assert!(printed.matches("Username: pinny").count() >= 6, "{printed}");
}
