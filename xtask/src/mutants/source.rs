//! Rewriting of a source text, so that each of its mutants can be chosen when it runs.
//!
//! The body of a function becomes a choice among bodies: the one that was written, and one for each
//! mutant. The places come from cargo-mutants; only where a signature ends is sought here.

use std::ops::{Range, RangeInclusive};

use anyhow::{Context, Result, ensure};

use super::mutant::{Function, Mutant, Place};

/// Environment variable with the number of the mutant; 0: the rules as they are.
pub const VARIABLE: &str = "PVC_MUTANT";

/// Module that every rewritten function calls, to be added to the root of the crate.
///
/// `Items` is an iterator whatever it was made of: an arm that makes no iterator is an error there,
/// and not in the arms beside it.
pub const MODULE: &str = r#"
#[doc(hidden)]
mod mutant {
    pub fn chosen() -> usize {
        static CHOSEN: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        *CHOSEN.get_or_init(|| std::env::var("PVC_MUTANT").unwrap().parse().unwrap())
    }

    pub struct Items<I, T> {
        next: fn(&mut I) -> Option<T>,
        size_hint: fn(&I) -> (usize, Option<usize>),
        iterator: I,
    }

    pub fn items<T, I: Iterator<Item = T>>(iterator: I) -> Items<I, T> {
        Items { next: I::next, size_hint: I::size_hint, iterator }
    }

    impl<I, T> Iterator for Items<I, T> {
        type Item = T;

        fn next(&mut self) -> Option<T> {
            (self.next)(&mut self.iterator)
        }

        fn size_hint(&self) -> (usize, Option<usize>) {
            (self.size_hint)(&self.iterator)
        }
    }

    pub enum Either<A, B> {
        First(A),
        Other(B),
    }

    impl<A: Iterator, B: Iterator<Item = A::Item>> Iterator for Either<A, B> {
        type Item = A::Item;

        fn next(&mut self) -> Option<A::Item> {
            match self {
                Either::First(it) => it.next(),
                Either::Other(it) => it.next(),
            }
        }

        fn size_hint(&self) -> (usize, Option<usize>) {
            match self {
                Either::First(it) => it.size_hint(),
                Either::Other(it) => it.size_hint(),
            }
        }
    }
}
"#;

/// Mutant with the number by which it is chosen.
pub type Numbered<'a> = (usize, &'a Mutant);

#[derive(Debug, Default)]
pub struct Rewritten {
    pub text: String,
    pub arms: Vec<Arm>,
    /// Mutants that cannot be chosen when the program runs.
    pub others: Vec<usize>,
}

/// The lines of the new text that are one mutant's.
#[derive(Debug, PartialEq, Eq)]
pub struct Arm {
    pub lines: RangeInclusive<usize>,
    pub mutant: usize,
}

/// Rewrites `text`, of which all `mutants` are. A function that is `const` becomes one that is not,
/// unless `keeps_const`: nothing can be chosen in it then.
pub fn rewrite(text: &str, mutants: &[Numbered<'_>], keeps_const: bool) -> Result<Rewritten> {
    let mut new = Rewritten::default();
    let mut done = 0;
    for Group { function, mutants } in groups(mutants, &mut new.others) {
        let whole = offset(text, function.span.start)?..offset(text, function.span.end)?;
        let signature = Signature::of(&text[whole.clone()])
            .with_context(|| format!("no body at line {}", function.span.start.line))?;
        let body = whole.start + signature.opening + 1..whole.end - 1;
        let constness = signature.constness.map(|it| whole.start + it.start..whole.start + it.end);
        let form = Form::of(&function.return_type);
        let Some(form) = form.filter(|_| constness.is_none() || !keeps_const) else {
            new.others.extend(mutants.iter().map(|(number, _)| number));
            continue;
        };
        let constness = constness.unwrap_or(done..done);
        new.text += &text[done..constness.start];
        new.text += &text[constness.end..body.start];
        new.choose(text, body.clone(), &mutants, form)?;
        done = body.end;
    }
    new.text += &text[done..];
    Ok(new)
}

/// The text with this mutant in the place of what it changes.
pub fn mutated(text: &str, mutant: &Mutant) -> Result<String> {
    replaced(text, 0..text.len(), mutant)
}

/// Function with all mutants inside it, those of functions within it as well.
struct Group<'a> {
    function: &'a Function,
    mutants: Vec<Numbered<'a>>,
}

/// Puts the mutants together by function, from the first to the last. Those outside all functions
/// are added to `others`.
fn groups<'a>(mutants: &[Numbered<'a>], others: &mut Vec<usize>) -> Vec<Group<'a>> {
    let mut inside = Vec::new();
    for (number, mutant) in mutants {
        match &mutant.function {
            Some(function) => inside.push((function, (*number, *mutant))),
            None => others.push(*number),
        }
    }
    inside.sort_by_key(|(function, _)| (function.span.start, std::cmp::Reverse(function.span.end)));
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (function, mutant) in inside {
        match groups.last_mut().filter(|it| function.span.end <= it.function.span.end) {
            Some(group) => group.mutants.push(mutant),
            None => groups.push(Group { function, mutants: vec![mutant] }),
        }
    }
    groups
}

/// Form of the choice in a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form<'a> {
    Plain,
    /// The function returns some iterator, of another type in each arm.
    Iterator {
        item: &'a str,
    },
}

impl Form<'_> {
    /// `None`: several bodies in one function of this type do not compile.
    fn of(return_type: &str) -> Option<Form<'_>> {
        if !return_type.contains("impl ") {
            return Some(Form::Plain);
        }
        let item = return_type.strip_prefix("-> impl Iterator<Item =")?;
        Some(Form::Iterator { item: &item[..generic(item)?] })
    }

    /// Text before and after the body that is the `index`th of several. Each iterator says what
    /// its items are, so that an error about them is in its own lines; it is made in a closure,
    /// from which an early return is of the iterator's own type.
    fn around(self, index: usize, is_last: bool) -> (String, String) {
        match self {
            Form::Plain => (String::new(), String::new()),
            Form::Iterator { item } => {
                let first = if is_last { "" } else { "crate::mutant::Either::First(" };
                let nested = "crate::mutant::Either::Other(".repeat(index) + first;
                let ends = ")".repeat(index + usize::from(!is_last));
                (
                    format!("{nested}crate::mutant::items::<{item}, _>((move || "),
                    format!(")()){ends}"),
                )
            }
        }
    }
}

/// Length of the type that ends with the bracket of the generic type that it is in.
fn generic(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut ends = text.char_indices().filter(|(_, it)| match it {
        '<' => {
            depth += 1;
            false
        }
        '>' => {
            depth -= 1;
            depth < 0
        }
        _ => false,
    });
    ends.next().map(|(at, _)| at)
}

impl Rewritten {
    fn choose(
        &mut self,
        text: &str,
        body: Range<usize>,
        mutants: &[Numbered<'_>],
        form: Form<'_>,
    ) -> Result<()> {
        self.text += "\nmatch crate::mutant::chosen() {\n";
        for (index, (number, mutant)) in mutants.iter().enumerate() {
            let body = replaced(text, body.clone(), mutant)?;
            let first = self.line();
            self.arm(&number.to_string(), form.around(index, false), &body);
            self.arms.push(Arm { lines: first..=self.line() - 1, mutant: *number });
        }
        self.arm("_", form.around(mutants.len(), true), &text[body]);
        self.text += "}\n";
        Ok(())
    }

    fn arm(&mut self, pattern: &str, (before, after): (String, String), body: &str) {
        self.text += &format!("{pattern} => {before}{{\n{body}\n}}{after},\n");
    }

    /// Number of the line at which the text ends.
    fn line(&self) -> usize {
        1 + self.text.matches('\n').count()
    }
}

/// The part of the text with this mutant in the place of what it changes.
fn replaced(text: &str, part: Range<usize>, mutant: &Mutant) -> Result<String> {
    let change = offset(text, mutant.span.start)?..offset(text, mutant.span.end)?;
    let is_inside = part.start <= change.start && change.end <= part.end;
    ensure!(is_inside, "`{}` is not inside its function's body", mutant.name);
    let (before, after) = (&text[part.start..change.start], &text[change.end..part.end]);
    Ok(format!("{before}{}{after}", mutant.replacement))
}

fn offset(text: &str, place: Place) -> Result<usize> {
    let outside = || format!("line {}, column {} is outside the text", place.line, place.column);
    let mut lines = text.split_inclusive('\n');
    let before: usize = lines.by_ref().take(place.line - 1).map(str::len).sum();
    let line = lines.next().with_context(outside)?;
    let mut columns = line.char_indices().map(|(at, _)| at).chain([line.len()]);
    Ok(before + columns.nth(place.column - 1).with_context(outside)?)
}

/// Parts of a function's text before its body.
#[derive(Debug, PartialEq, Eq)]
struct Signature {
    /// The word `const` and the space behind it, if there is one.
    constness: Option<Range<usize>>,
    /// The body's first brace.
    opening: usize,
}

impl Signature {
    /// Reads over comments, attributes and parameters. A signature has no braces but in the
    /// generic constants of a type, which are in brackets.
    fn of(function: &str) -> Option<Signature> {
        let (mut at, mut depth, mut constness, mut is_named) = (0, 0, None, false);
        while let Some(first) = function[at..].chars().next() {
            let rest = &function[at..];
            let length = token(rest);
            match (first, &rest[..length]) {
                ('(' | '[', _) => depth += 1,
                (')' | ']', _) => depth -= 1,
                ('{', _) if depth == 0 => return Some(Signature { constness, opening: at }),
                (_, "fn") => is_named = true,
                (_, "const") if depth == 0 && !is_named => {
                    let space = rest[length..].find(|it: char| !it.is_whitespace())?;
                    constness = Some(at..at + length + space);
                }
                _ => {}
            }
            at += length;
        }
        None
    }
}

/// Length of the comment, string, word or character with which the text begins.
fn token(text: &str) -> usize {
    let is_of_word = |it: char| it.is_alphanumeric() || it == '_';
    let first = text.chars().next().map_or(0, char::len_utf8);
    if text.starts_with("//") {
        text.find('\n').unwrap_or(text.len())
    } else if text.starts_with("/*") {
        text.find("*/").map_or(text.len(), |end| end + 2)
    } else if text.starts_with('"') {
        let mut escaped = false;
        let end = text.char_indices().skip(1).find(|(_, it)| {
            let is_end = *it == '"' && !escaped;
            escaped = *it == '\\' && !escaped;
            is_end
        });
        end.map_or(text.len(), |(end, _)| end + 1)
    } else if text.starts_with(is_of_word) {
        text.find(|it| !is_of_word(it)).unwrap_or(text.len())
    } else {
        first
    }
}

#[cfg(test)]
mod tests {
    use super::super::mutant::Span;
    use super::*;

    /// Mutant that changes the only `old` of the text, in the function that begins with `function`
    /// and ends with the next brace in the same column.
    fn mutant(text: &str, function: &str, old: &str, new: &str, return_type: &str) -> Mutant {
        let start = text.find(function).unwrap();
        let end = start + text[start..].find("\n}").unwrap() + 2;
        let change = start + text[start..end].find(old).unwrap();
        Mutant {
            name: format!("replace {old} with {new}"),
            file: "a.rs".to_owned(),
            function: Some(Function {
                return_type: return_type.to_owned(),
                span: Span { start: place(text, start), end: place(text, end) },
            }),
            span: Span { start: place(text, change), end: place(text, change + old.len()) },
            replacement: new.to_owned(),
        }
    }

    fn place(text: &str, offset: usize) -> Place {
        let before = &text[..offset];
        let line = before.rsplit('\n').next().unwrap();
        Place { line: 1 + before.matches('\n').count(), column: 1 + line.chars().count() }
    }

    const TWO: &str = "\
const A: i32 = -1;

/// Whether {a} is \"less than b: 'ä'.
#[must_use = \"it { is\"]
fn less(a: [u8; { 2 }], b: u8) -> bool {
    /* ö */ a[0] < b && b > 0 // so
}

fn other() {}
";

    #[test]
    fn a_function_has_a_body_for_each_of_its_mutants() {
        let mutants = [("<", "<="), ("a[0] < b && b > 0", "true")]
            .map(|(old, new)| mutant(TWO, "/// Whether", old, new, "-> bool"));
        let new = rewrite(TWO, &[(7, &mutants[0]), (8, &mutants[1])], false).unwrap();
        let expected = "\
const A: i32 = -1;

/// Whether {a} is \"less than b: 'ä'.
#[must_use = \"it { is\"]
fn less(a: [u8; { 2 }], b: u8) -> bool {
match crate::mutant::chosen() {
7 => {

    /* ö */ a[0] <= b && b > 0 // so

},
8 => {

    /* ö */ true // so

},
_ => {

    /* ö */ a[0] < b && b > 0 // so

},
}
}

fn other() {}
";
        assert_eq!(new.text, expected);
        let arms = [Arm { lines: 7..=11, mutant: 7 }, Arm { lines: 12..=16, mutant: 8 }];
        assert_eq!((new.arms, new.others), (arms.into(), vec![]));
        assert_eq!(mutated(TWO, &mutants[0]).unwrap(), TWO.replace(" < ", " <= "));
    }

    #[test]
    fn a_function_inside_another_is_changed_with_it() {
        let text = "fn f() -> u8 {\n    fn g() -> u8 {\n        1 + 2\n    }\n    3 * g()\n}\n";
        let outer = mutant(text, "fn f", "*", "/", "-> u8");
        let mut inner = mutant(text, "fn f", "+", "-", "-> u8");
        let end = text.find("    }").unwrap() + 5;
        let span = Span { start: place(text, text.find("fn g").unwrap()), end: place(text, end) };
        inner.function = Some(Function { return_type: "-> u8".to_owned(), span });
        let new = rewrite(text, &[(1, &inner), (2, &outer)], false).unwrap();
        assert_eq!(new.text.matches("crate::mutant::chosen()").count(), 1);
        assert_eq!(new.arms.iter().map(|arm| arm.mutant).collect::<Vec<_>>(), [2, 1]);
        for bodies in ["1 + 2\n    }\n    3 / g()", "1 - 2\n    }\n    3 * g()"] {
            assert_eq!(new.text.matches(bodies).count(), 1, "{}", new.text);
        }
    }

    #[test]
    fn a_constant_function_becomes_one_that_can_choose() {
        let text = "/// A const fn.\npub const fn f<const N: usize>() -> usize {\n    N + 1\n}\n";
        let plus = mutant(text, "/// A", "+", "-", "-> usize");
        let new = rewrite(text, &[(1, &plus)], false).unwrap();
        assert!(new.text.starts_with("/// A const fn.\npub fn f<const N: usize>() -> usize {\n"));
        assert_eq!((new.arms.len(), new.others), (1, vec![]));
        let kept = rewrite(text, &[(1, &plus)], true).unwrap();
        assert_eq!((kept.text.as_str(), kept.arms.len(), kept.others), (text, 0, vec![1]));
    }

    #[test]
    fn iterators_of_several_types_are_one_type() {
        let text = "fn f<'a>(a: &'a [u8]) -> impl Iterator<Item = &'a u8> {\n    a.iter()\n}\n";
        let returns = "-> impl Iterator<Item = &'a u8> + use<'a>";
        let none = mutant(text, "fn", "a.iter()", "std::iter::empty()", returns);
        let few = mutant(text, "fn", ".iter()", ".iter().take(1)", returns);
        let new = rewrite(text, &[(1, &none), (2, &few)], false).unwrap();
        let [first, other] = ["First", "Other"].map(|it| format!("crate::mutant::Either::{it}("));
        let items = "crate::mutant::items::< &'a u8, _>((move || ";
        for arm in [
            format!("1 => {first}{items}{{\n\n    std::iter::empty()\n\n}})())),"),
            format!("2 => {other}{first}{items}{{\n\n    a.iter().take(1)\n\n}})()))),"),
            format!("_ => {other}{other}{items}{{\n\n    a.iter()\n\n}})()))),"),
        ] {
            assert!(new.text.contains(&arm), "{arm} in {}", new.text);
        }
    }

    #[test]
    fn what_cannot_be_chosen_is_left_for_a_build_of_its_own() {
        let outside = Mutant { function: None, ..mutant(TWO, "const", "-", "", "") };
        let closure = "fn f() -> impl Fn() {\n    || c\n}\n";
        for (text, mutant) in
            [(TWO, outside), (closure, mutant(closure, "fn", "c", "d", "-> impl Fn()"))]
        {
            let new = rewrite(text, &[(4, &mutant)], false).unwrap();
            assert_eq!((new.text.as_str(), new.arms, new.others), (text, vec![], vec![4]));
        }
    }

    #[test]
    fn a_change_outside_the_text_or_the_body_is_refused() {
        let mut far = mutant(TWO, "/// Whether", "<", "<=", "-> bool");
        far.span.end.column = 99;
        assert!(rewrite(TWO, &[(1, &far)], false).is_err());
        let parameter = mutant(TWO, "/// Whether", "b: u8", "b: u16", "-> bool");
        let error = rewrite(TWO, &[(1, &parameter)], false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`replace b: u8 with b: u16` is not inside its function's body"
        );
    }

    #[test]
    fn the_module_reads_the_variable_that_is_set() {
        assert_eq!(MODULE.matches(&format!("\"{VARIABLE}\"")).count(), 1);
    }
}
