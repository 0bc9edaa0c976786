use std::collections::HashMap;

use pinniped_test_support::rng::Rng;

use super::*;
use crate::reviews::review_cache::ENTRIES;
use crate::reviews::tests::{allowed, peer};

/// Random reviews.
struct Reviews(Rng);

impl Reviews {
    fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound)
    }

    /// Returns a short text from few letters: two texts often have the same content with a
    /// different boundary. The NULs resemble bytes of a length.
    fn text(&mut self) -> String {
        (0..self.below(4)).map(|_| ['a', 'b', '\0', '\u{1}', '/'][self.below(5)]).collect()
    }

    fn texts(&mut self) -> Vec<String> {
        (0..self.below(3)).map(|_| self.text()).collect()
    }

    fn selector(&mut self) -> Option<String> {
        (self.below(3) > 0).then(|| self.text())
    }

    /// Returns a text that is mostly empty, so that some reviews are similar.
    fn some(&mut self) -> String {
        if self.below(5) == 0 { self.text() } else { String::new() }
    }

    fn question(&mut self) -> (User, Attributes) {
        let mut user = User { name: self.some(), uid: self.some(), groups: self.texts(), ..User::default() };
        for _ in 0..self.below(2) {
            let key = self.text();
            user.extra.insert(key, self.texts());
        }
        let attributes = match self.below(3) {
            0 => Attributes::NonResource { verb: self.some(), path: self.some() },
            _ => Attributes::Resource(ResourceAttributes {
                verb: self.some(),
                group: self.some(),
                version: self.some(),
                resource: self.some(),
                subresource: self.some(),
                name: self.some(),
                namespace: self.some(),
                field_selector: self.selector(),
                label_selector: self.selector(),
            }),
        };
        (user, attributes)
    }
}

#[test]
fn different_reviews_have_different_keys() {
    let mut reviews = Reviews(Rng::new(20_260_801));
    let (mut requested, mut same) = (HashMap::new(), 0);
    for _ in 0..200_000 {
        let (user, attributes) = reviews.question();
        let wanted = format!("{user:?} {attributes:?}");
        let sent = serde_json::to_string(&Spec::new(&user, &attributes)).unwrap();
        let asked_now = (wanted, sent);
        if let Some(earlier) = requested.insert(digest(&user.clone().into(), &attributes), asked_now.clone())
        {
            assert_eq!(earlier, asked_now);
            same += 1;
        }
    }
    // Otherwise the test does not show that a key serves more than one request.
    assert!(same > 1_000, "{same} of {} came twice", requested.len());
}

// The clock is paused, so that no entry expires while a busy machine fills the cache.
#[tokio::test(start_paused = true)]
async fn the_cache_is_bounded() {
    let (_, reviews) = peer(|_, _, _| (201, allowed(true)));
    let authorizer = Authorizer::with(reviews);
    let user = User { name: "a".to_owned(), ..User::default() };
    for at in 0..ENTRIES + 500 {
        let question = Attributes::NonResource { verb: "get".to_owned(), path: format!("/{at}") };
        authorizer.authorize("a", &user.clone().into(), &question).await.unwrap();
    }
    let known = &authorizer.0.results.positive;
    let most = usize::try_from(ENTRIES).unwrap();
    assert!((most / 2..=most).contains(&known.len()), "{}", known.len());
    assert_eq!(known.lifetime(), std::time::Duration::from_secs(10));
}
