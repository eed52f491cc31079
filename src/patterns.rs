//! Selects leaves by patterns of paths.
//!
//! A pattern is a path in which `*` matches any text within one part, `**` any number of parts, and
//! `?` one character. A match selects everything below it.
//!
//! All patterns are matched at once, key by key, as a set of positions in the patterns (Thompson's
//! simulation; Russ Cox, "Regular Expression Matching Can Be Simple And Fast"). The time is linear
//! in the text, and no path is built. Patterns without wildcards are in a table.

use std::collections::HashMap;

use smallvec::{SmallVec, smallvec};

use crate::base::error::escaped;
use crate::{Result, base::grow};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Char(char),
    /// `?`: one character of a part.
    One,
    /// `*`: any text within one part.
    Within,
    /// `**` beside other characters of a part: any text.
    Any,
    /// `**/`: any number of whole parts. This position is before a part.
    Parts,
    /// `**/`, inside a part; always follows `Parts`.
    InPart,
    /// The end of a pattern, by number.
    End(usize),
}

fn tokens(pattern: &str) -> impl Iterator<Item = Token> + '_ {
    let mut chars = pattern.chars().peekable();
    let mut inside = false;
    std::iter::from_fn(move || {
        if std::mem::take(&mut inside) {
            return Some(Token::InPart);
        }
        Some(match chars.next()? {
            '?' => Token::One,
            '*' if chars.next_if_eq(&'*').is_none() => Token::Within,
            '*' if chars.next_if_eq(&'/').is_some() => {
                inside = true;
                Token::Parts
            }
            '*' => Token::Any,
            other => Token::Char(other),
        })
    })
}

fn skips(token: Token) -> Option<usize> {
    match token {
        Token::Within | Token::Any => Some(1),
        Token::Parts => Some(2),
        _ => None,
    }
}

fn moves(token: Token, char: char) -> Option<isize> {
    match (token, char) {
        (Token::Char(expected), _) if expected == char => Some(1),
        (Token::One | Token::Within, '/') => None,
        (Token::Within | Token::Any, _) | (Token::Parts, '/') => Some(0),
        (Token::One | Token::Parts, _) => Some(1),
        (Token::InPart, '/') => Some(-1),
        (Token::InPart, _) => Some(0),
        _ => None,
    }
}

type Positions = SmallVec<[u64; 1]>;

fn each(positions: &Positions) -> impl Iterator<Item = usize> + '_ {
    positions.iter().enumerate().flat_map(|(at, word)| {
        let mut left = *word;
        std::iter::from_fn(move || {
            let bit = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (bit < 64).then_some(64 * at + bit)
        })
    })
}

fn add(tokens: &[Token], positions: &mut Positions, position: usize) {
    let mut next = Some(position);
    while let Some(at) = next {
        positions[at / 64] |= 1 << (at % 64);
        next = skips(tokens[at]).map(|by| at + by);
    }
}

#[derive(Debug, Clone, Default)]
struct Rule {
    pattern: Option<usize>,
    bool: Option<bool>,
    below: HashMap<Box<str>, usize>,
    /// Where patterns go on, from their first part with a wildcard.
    begin: Vec<usize>,
}

#[derive(Debug)]
pub struct Selector {
    /// The first rule is at the root.
    rules: Vec<Rule>,
    tokens: Vec<Token>,
    /// Their number; `None` for bools.
    pub patterns: Option<usize>,
}

#[derive(Debug, Clone)]
pub struct State {
    rule: Option<usize>,
    positions: Positions,
    /// Whether a pattern or bool here or above selects this place; `None` if none decides.
    pub selected: Option<bool>,
    depth: usize,
}

impl Selector {
    /// A `literal` pattern has no wildcards.
    pub fn patterns<'a>(patterns: impl IntoIterator<Item = (&'a str, bool)>) -> Result<Self> {
        let mut selector = Self::empty();
        let mut count = 0;
        for (number, (pattern, literal)) in patterns.into_iter().enumerate() {
            count = number + 1;
            let wildcard = pattern.find(['*', '?']).filter(|_| !literal);
            let Some(wildcard) = wildcard else {
                let parts = (pattern != ".").then(|| pattern.split('/'));
                let node = selector.insert(parts.into_iter().flatten())?;
                selector.rules[node].pattern = Some(number);
                continue;
            };
            let slash = pattern[..wildcard].rfind('/');
            let (before, rest) = pattern.split_at(slash.unwrap_or(0));
            let node = selector.insert(slash.map(|_| before.split('/')).into_iter().flatten())?;
            grow::push(&mut selector.rules[node].begin, selector.tokens.len())?;
            selector.tokens.try_reserve(rest.len() + 1)?;
            selector.tokens.extend(tokens(rest));
            selector.tokens.push(Token::End(number));
        }
        selector.patterns = Some(count);
        Ok(selector)
    }

    /// Selects leaves by the nearest bool at or above them, given by its keys.
    pub fn bools<'a, K: IntoIterator<Item = &'a str>>(
        bools: impl IntoIterator<Item = (K, bool)>,
    ) -> Result<Self> {
        let mut selector = Self::empty();
        for (keys, bool) in bools {
            let parts: Vec<_> = keys.into_iter().map(escaped).collect();
            let node = selector.insert(parts.iter().map(AsRef::as_ref))?;
            selector.rules[node].bool = Some(bool);
        }
        Ok(selector)
    }

    fn empty() -> Self {
        Self {
            rules: vec![Rule::default()],
            tokens: Vec::new(),
            patterns: None,
        }
    }

    fn insert<'a>(&mut self, parts: impl Iterator<Item = &'a str>) -> Result<usize> {
        let mut at = 0;
        for part in parts {
            self.rules.try_reserve(1)?;
            let count = self.rules.len();
            let below = &mut self.rules[at].below;
            below.try_reserve(1)?;
            at = *below.entry(part.into()).or_insert(count);
            if at == count {
                self.rules.push(Rule::default());
            }
        }
        Ok(at)
    }

    pub fn start(&self) -> State {
        let mut state = State {
            rule: Some(0),
            positions: smallvec![0; self.tokens.len().div_ceil(64)],
            selected: None,
            depth: 0,
        };
        self.decide(&mut state);
        state
    }

    pub fn root(&self) -> State {
        let mut state = self.start();
        state.positions = self.moved(&state.positions, ".".chars());
        state.depth = 1;
        self.decide(&mut state);
        state
    }

    pub fn below(&self, state: &State, key: &str) -> State {
        let part = escaped(key);
        let slash = (state.depth > 0).then_some('/');
        let rule = state.rule.map(|rule| &self.rules[rule]);
        let mut below = State {
            rule: rule.and_then(|rule| rule.below.get(&*part).copied()),
            positions: self.moved(&state.positions, slash.into_iter().chain(part.chars())),
            selected: state.selected,
            depth: state.depth + 1,
        };
        self.decide(&mut below);
        below
    }

    fn decide(&self, state: &mut State) {
        if let Some(bool) = state.rule.and_then(|rule| self.rules[rule].bool) {
            state.selected = Some(bool);
        }
        for start in state.rule.iter().flat_map(|rule| &self.rules[*rule].begin) {
            add(&self.tokens, &mut state.positions, *start);
        }
        if self.ended(state).next().is_some() {
            state.selected = Some(true);
        }
    }

    /// The patterns that match the whole path so far.
    pub fn ended<'a>(&'a self, state: &'a State) -> impl Iterator<Item = usize> + 'a {
        let of_rule = state.rule.and_then(|rule| self.rules[rule].pattern);
        // Before the first part no pattern ends, even if all wildcards are empty.
        let of_tokens = each(&state.positions).filter_map(|at| match self.tokens[at] {
            Token::End(pattern) if state.depth > 0 => Some(pattern),
            _ => None,
        });
        of_rule.into_iter().chain(of_tokens)
    }

    /// Returns whether a pattern or bool may decide something below.
    pub fn goes_on(&self, state: &State) -> bool {
        state
            .rule
            .is_some_and(|rule| !self.rules[rule].below.is_empty())
            || each(&state.positions).any(|at| !matches!(self.tokens[at], Token::End(_)))
    }

    fn moved(&self, positions: &Positions, text: impl Iterator<Item = char>) -> Positions {
        let mut now = positions.clone();
        let mut next: Positions = smallvec![0; now.len()];
        for char in text {
            if now.iter().all(|word| *word == 0) {
                break;
            }
            next.fill(0);
            for at in each(&now) {
                if let Some(by) = moves(self.tokens[at], char) {
                    add(&self.tokens, &mut next, at.wrapping_add_signed(by));
                }
            }
            std::mem::swap(&mut now, &mut next);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(pattern: &str, path: &str) -> bool {
        let chars: Vec<char> = path.chars().collect();
        let pattern: Vec<char> = pattern.chars().collect();
        naive_at(&pattern, &chars)
    }

    fn naive_at(pattern: &[char], path: &[char]) -> bool {
        let tails = |inside: fn(char) -> bool| {
            let most = path
                .iter()
                .position(|char| !inside(*char))
                .unwrap_or(path.len());
            (0..=most).map(|start| &path[start..])
        };
        match pattern {
            [] => matches!(path, [] | ['/', ..]),
            ['*', '*', '/', rest @ ..] => {
                let after_slash = (0..path.len())
                    .filter(|at| path[*at] == '/')
                    .map(|at| at + 1);
                naive_at(rest, path)
                    || after_slash
                        .into_iter()
                        .any(|at| naive_at(rest, &path[at..]))
            }
            ['*', '*', rest @ ..] => tails(|_| true).any(|tail| naive_at(rest, tail)),
            ['*', rest @ ..] => tails(|char| char != '/').any(|tail| naive_at(rest, tail)),
            ['?', rest @ ..] => {
                path.first().is_some_and(|char| *char != '/') && naive_at(rest, &path[1..])
            }
            [first, rest @ ..] => path.first() == Some(first) && naive_at(rest, &path[1..]),
        }
    }

    fn selected(selector: &Selector, path: &str) -> Option<bool> {
        let mut state = selector.start();
        for part in path.split('/') {
            state = selector.below(&state, part);
        }
        state.selected
    }

    proptest::proptest! {
        #[test]
        fn patterns_match_their_definition(
            patterns in proptest::collection::vec("[ab*?/]{0,8}", 1..4),
            path in "[abü/]{0,10}",
        ) {
            let selector = Selector::patterns(patterns.iter().map(|pattern| (pattern.as_str(), false)));
            let expected = patterns.iter().any(|pattern| naive(pattern, &path));
            assert_eq!(selected(&selector.unwrap(), &path) == Some(true), expected);
        }
    }

    #[test]
    fn bools_are_for_all_below() {
        let bools = [
            (vec!["a"], true),
            (vec!["a", "b"], false),
            (vec!["x/y"], true),
        ];
        let selector = Selector::bools(bools).unwrap();
        let selected = |keys: &[&str]| {
            let below = |state, key: &&str| selector.below(&state, key);
            keys.iter().fold(selector.start(), below).selected
        };
        assert_eq!(selected(&["a", "c", "d"]), Some(true));
        assert_eq!(selected(&["a", "b", "c"]), Some(false));
        assert_eq!(selected(&["x/y"]), Some(true));
        assert_eq!(selected(&["x", "y"]), None);
        assert_eq!(selected(&["b"]), None);
    }

    #[test]
    fn long_keys_before_the_first_wildcard_are_looked_up() {
        let long = "k".repeat(5000);
        let pattern = format!("{long}/*5");
        let selector = Selector::patterns([(pattern.as_str(), false)]).unwrap();
        assert_eq!(selector.tokens.len(), "/*5".len() + 1);
        assert_eq!(selected(&selector, &format!("{long}/15")), Some(true));
        assert_eq!(selected(&selector, &format!("{long}/51")), None);
        assert_eq!(selected(&selector, "k/15"), None);
    }

    #[test]
    fn long_patterns_take_linear_time() {
        let pattern = "*a".repeat(30) + "b";
        let path = "a".repeat(60);
        let selector = Selector::patterns([(pattern.as_str(), false)]).unwrap();
        assert_eq!(selected(&selector, &path), None);
    }
}
