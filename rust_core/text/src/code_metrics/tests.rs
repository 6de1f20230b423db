use std::path::PathBuf;

use proptest::prelude::*;

use super::decode::decode;
use super::nesting::MAX_NESTING;
use super::{FileError, LineCounts, MAX_FILE_BYTES, analyse, analyse_files};

/// Name and complexity of each function.
fn complexities(source: &str) -> Vec<(String, u32)> {
    let functions = analyse(source).expect("the source is valid").functions;
    functions
        .into_iter()
        .map(|function| (function.name, function.complexity))
        .collect()
}

/// Complexity of a function with this body.
fn complexity_of(body: &str) -> u32 {
    let indented: String = body.lines().map(|line| format!("    {line}\n")).collect();
    complexities(&format!("def function(a, b, c):\n{indented}"))[0].1
}

fn radon_complexity(source: &str) -> u32 {
    analyse(source).expect("the source is valid").radon_complexity
}

fn lines(source: &str) -> LineCounts {
    analyse(source).expect("the source is valid").lines
}

/// C901 charges what its definition lists and nothing else.
#[test]
fn c901_of_each_construct() {
    let cases = [
        ("pass", 1),
        ("if a:\n    pass", 2),
        ("if a:\n    pass\nelse:\n    pass", 2),
        (
            "if a:\n    pass\nelif b:\n    pass\nelif c:\n    pass\nelse:\n    pass",
            4,
        ),
        ("if a:\n    if b:\n        pass", 3),
        ("for x in a:\n    pass", 2),
        ("for x in a:\n    pass\nelse:\n    pass", 2),
        ("for x in a:\n    pass\nelse:\n    if b:\n        pass", 3),
        ("while a:\n    pass\nelse:\n    pass", 2),
        ("try:\n    pass\nfinally:\n    pass", 1),
        ("try:\n    pass\nfinally:\n    if a:\n        pass", 2),
        ("try:\n    pass\nexcept A:\n    pass\nexcept B:\n    pass", 3),
        (
            "try:\n    pass\nexcept A:\n    pass\nelse:\n    pass\nfinally:\n    pass",
            3,
        ),
        ("try:\n    pass\nexcept* A:\n    pass", 2),
        ("with a as b, c:\n    if b:\n        pass", 2),
        ("match a:\n    case 1:\n        pass\n    case 2:\n        pass", 3),
        ("match a:\n    case 1:\n        pass\n    case _:\n        pass", 2),
        ("match a:\n    case 1:\n        pass\n    case _ if b:\n        pass", 3),
        ("match a:\n    case x:\n        pass", 1),
        ("return [x for x in a if x if b]", 1),
        ("return lambda x: x if a else b", 1),
        ("return a and b or c", 1),
        ("return a if b else c", 1),
        ("assert a, b", 1),
        ("def inner():\n    if a:\n        pass", 3),
        (
            "class Inner:\n    if a:\n        x = 1\n    def method(self):\n        pass",
            3,
        ),
        ("async def inner():\n    async for x in a:\n        pass", 3),
        ("async def inner():\n    async with a:\n        pass", 2),
        ("return f'{a if b else c}'", 1),
    ];
    for (body, expected) in cases {
        assert_eq!(complexity_of(body), expected, "{body}");
    }
}

/// Functions come in the order of their `def`s, with dotted names, wherever they are.
#[test]
fn functions_are_named_by_their_path() {
    let source = "\
@decorator
@other
def first():
    def inner():
        pass
class Outer:
    class Inner:
        async def method(self): pass
    if True:
        def conditional(self): pass
try:
    pass
except ImportError:
    def fallback(): pass
";
    let functions = analyse(source).expect("the source is valid").functions;
    let found: Vec<_> = functions
        .iter()
        .map(|function| (function.name.as_str(), function.line))
        .collect();
    let expected = [
        ("first", 3),
        ("first.inner", 4),
        ("Outer.Inner.method", 8),
        ("Outer.conditional", 10),
        ("fallback", 14),
    ];
    assert_eq!(found, expected);
}

/// Lines are counted after every kind of line end.
#[test]
fn lines_of_functions_follow_any_line_end() {
    for end in ["\n", "\r\n", "\r"] {
        let source = format!("x = 1{end}{end}def function(): pass{end}");
        assert_eq!(analyse(&source).expect("the source is valid").functions[0].line, 3);
    }
}

/// Radon's own complexity charges each construct as its visitor does.
#[test]
fn radon_complexity_of_each_construct() {
    let cases = [
        ("", 1),
        ("if a and b or c: pass\nelif d: pass", 5),
        ("for x in a: pass\nelse: pass", 3),
        ("while a: pass", 2),
        (
            "try: pass\nexcept A: pass\nexcept B: pass\nelse: pass\nfinally: pass",
            4,
        ),
        ("try: pass\nexcept* A: pass", 1),
        ("with a: pass", 1),
        ("match a:\n case 1: pass\n case x: pass", 2),
        ("match a:\n case _ if b: pass\n case 2 | 3: pass", 2),
        ("x = [y for y in a if y if b for z in c]", 5),
        ("x = a if b else c", 2),
        ("x = lambda y: y or a", 2),
        ("assert a or b", 2),
        ("def f():\n if a: pass", 2),
        ("def f(x=a or b) -> c or d: pass", 1),
        ("@a or b\ndef f(): pass", 1),
        ("def f():\n def g():\n  if a: pass", 1),
        ("class A:\n def f(self):\n  if a: pass", 3),
        ("class A:\n class B:\n  def f(self): pass", 1),
        ("class A(b or c):\n x = a or b", 2),
        ("async def f():\n async for x in a: pass", 2),
        ("x = f'{a or b:{c or d}}'", 3),
    ];
    for (source, expected) in cases {
        assert_eq!(radon_complexity(source), expected, "{source}");
    }
}

/// Distinct operands are told apart by value and by the name of the function around them.
#[test]
fn halstead_volume_of_small_sources() {
    // Length times log2 of the number of distinct operators and operands.
    let cases = [
        ("a = b", 0.0, 0.0),
        ("a + b", 3.0, 3.0),
        ("a + a", 3.0, 2.0),
        ("a + x.a", 3.0, 2.0),
        ("a + 'a'", 3.0, 2.0),
        ("a + b'a'", 3.0, 3.0),
        ("1 + 1.0", 3.0, 2.0),
        ("1 + True", 3.0, 2.0),
        ("0j + 0", 3.0, 2.0),
        ("1j + 1j", 3.0, 2.0),
        ("... == None", 3.0, 3.0),
        ("f() + f()", 3.0, 3.0),
        ("a < b <= c", 5.0, 5.0),
        ("a and b and c", 4.0, 4.0),
        ("not a", 2.0, 2.0),
        ("a += b\na + b", 6.0, 3.0),
        ("def f(): a + b\ndef g(): a + b", 6.0, 5.0),
        ("def f(): a + b\nclass C:\n def f(self): a + b", 6.0, 3.0),
        ("async def f(): a + b", 3.0, 3.0),
        ("def f(x=a + b): pass", 0.0, 0.0),
        ("class C(a + b): pass", 3.0, 3.0),
        ("'\\ud800' + '\\ud801'", 3.0, 3.0),
    ];
    for (source, length, vocabulary) in cases {
        let expected = if vocabulary > 0.0 {
            length * f64::log2(vocabulary)
        } else {
            0.0
        };
        let volume = analyse(source).expect("the source is valid").halstead_volume;
        assert!(
            (volume - expected).abs() < 1e-9,
            "{source}: {volume}, expected {expected}"
        );
    }
}

/// A line is source, comment, part of a lone string, or blank; logical lines follow colons and semicolons.
#[test]
fn line_counts_of_each_kind() {
    let counts = |source, logical, comments, multi, single_comments, blank| LineCounts {
        source,
        logical,
        comments,
        multi,
        single_comments,
        blank,
    };
    let cases = [
        ("", counts(0, 0, 0, 0, 0, 0)),
        ("\n  \n", counts(0, 0, 0, 0, 0, 2)),
        ("x = 1  # why\n# alone\n", counts(1, 1, 2, 0, 1, 0)),
        ("'one line'\n", counts(0, 1, 0, 0, 1, 0)),
        ("'''two\n\nlines'''\n", counts(0, 1, 0, 2, 0, 1)),
        ("x = '''two\n\nlines'''\n", counts(2, 1, 0, 0, 0, 1)),
        ("if a: b\n", counts(1, 2, 0, 0, 0, 0)),
        ("if a:\n    b\n", counts(2, 2, 0, 0, 0, 0)),
        ("if a:  # why\n    b\n", counts(2, 2, 1, 0, 0, 0)),
        ("a; b; c;\n", counts(1, 3, 0, 0, 0, 0)),
        // In a part before a semicolon one token after the colon goes unnoticed.
        ("if a: b; c\n", counts(1, 2, 0, 0, 0, 0)),
        ("if a: b(); c\n", counts(1, 3, 0, 0, 0, 0)),
        ("x = {1: 2}\n", counts(1, 2, 0, 0, 0, 0)),
        ("x = (1,\n\n     2)  # c\n", counts(2, 1, 1, 0, 0, 1)),
        ("x = 1 + \\\n    2\n", counts(2, 1, 0, 0, 0, 0)),
        ("x = 'a\\\nb'\n", counts(2, 1, 0, 0, 0, 0)),
        ("'a\\\nb'\n", counts(0, 1, 0, 2, 0, 0)),
        ("# a\x0cb\n", counts(1, 1, 1, 0, 1, 0)),
        ("f'{a[\"b\"]:>{c}}'\n", counts(0, 1, 0, 0, 1, 0)),
    ];
    for (source, expected) in cases {
        assert_eq!(lines(source), expected, "{source:?}");
    }
}

/// Strings with the same quotes inside, of Python 3.12, do not throw the counts off.
#[test]
fn nested_quotes_of_python_3_12_count_as_one_string() {
    let source = "x = f'{a['b']:{'{'}}' # c\ny = f'{\n  'a'\n}'\nz = 1\n";
    assert_eq!(lines(source).source, 5);
    assert_eq!(lines(source).logical, 3);
    assert_eq!(lines(source).comments, 1);
}

/// A source without operators or without lines is perfectly maintainable.
#[test]
fn maintainability_of_nearly_nothing_is_100() {
    for source in ["", "# comment\n", "x = 1\n"] {
        assert_eq!(analyse(source).expect("the source is valid").maintainability, 100.0);
    }
}

/// The index is radon's, to the last bit.
#[test]
fn maintainability_of_a_small_source() {
    let source = "\
def merge(left, right, key=None):
    '''Merges
    two sorted lists.'''
    out = []
    i = j = 0  # next of each
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            out += [left[i]]
            i += 1
        else:
            out += [right[j]]
            j += 1
    return out + left[i:] + right[j:]
";
    // `radon.metrics.mi_visit(source, multi=True)` of radon 6.0.1.
    assert_eq!(
        analyse(source).expect("the source is valid").maintainability,
        86.23837252010784
    );
}

/// Syntax of every Python from 3.8 to 3.14 is accepted.
#[test]
fn syntax_of_all_supported_versions_parses() {
    for source in [
        "def f(a, /, b): print(c := a)",
        "@a[0].b\ndef f(x: list[int]): pass",
        "match x:\n    case {'a': [1, *_], **rest} if rest: pass",
        "try: pass\nexcept* (A, B) as group: pass",
        "def f[T: int = str](x: T) -> T: type X[*A] = A",
        "try: pass\nexcept A, B: pass",
        "x = t'{a!r:>{b}}'",
    ] {
        analyse(source).expect(source);
    }
}

/// An error tells where the source stops being Python.
#[test]
fn errors_carry_the_position() {
    let error = analyse("x = 1\ny = é +\n").expect_err("the source is broken");
    assert_eq!((error.line, error.column), (2, 8));
    let error = analyse("x = 1\n  )\n").expect_err("the source is broken");
    assert_eq!((error.line, error.column), (2, 3));
    assert!(analyse("print 'python 2'\n").is_err());
}

/// However deep a source nests, the stack holds.
#[test]
fn hostile_nesting_is_refused() {
    let deep = 100_000;
    let sources = [
        format!("x = {}1{}\n", "(".repeat(deep), ")".repeat(deep)),
        format!("x = {}{}\n", "[".repeat(deep), "]".repeat(deep)),
        format!("x = {}1{}\n", "{1:".repeat(deep), "}".repeat(deep)),
        "(".repeat(deep),
        "[{(".repeat(deep),
        format!("x = {}1\n", "not ".repeat(deep)),
        format!("x = {}1\n", "- ~".repeat(deep)),
        format!("x = {}1\n", "await ".repeat(deep)),
        format!("x = {}1\n", "lambda: ".repeat(deep)),
        format!("x = {}1\n", "lambda a, b=1: ".repeat(deep)),
        format!("x = {}1\n", "a if b else ".repeat(deep)),
        format!("x = {}1\n", "a + ".repeat(deep)),
        format!("x = {}1\n", "a ** ".repeat(deep)),
        format!("x = a{}\n", ".b".repeat(deep)),
        format!("x = a{}\n", "()".repeat(deep)),
        format!("x = a{}\n", "[0]".repeat(deep)),
        format!("x = {}1{}\n", "f'{".repeat(deep), "}'".repeat(deep)),
        format!("x = f'{{a:{}{}}}'\n", "{a:".repeat(deep), "}".repeat(deep)),
        format!("match a:\n    case {}1{}: pass\n", "[".repeat(deep), "]".repeat(deep)),
    ];
    for source in sources {
        let error = analyse(&source).expect_err("the nesting is too deep");
        let start: String = source.chars().take(40).collect();
        assert!(error.message.contains("nested deeper"), "{start}: {error}");
    }
    let indented: String = (0..MAX_NESTING + 10)
        .map(|depth| format!("{}if a:\n", " ".repeat(depth)))
        .collect();
    assert!(
        analyse(&indented)
            .expect_err("the nesting is too deep")
            .message
            .contains("nested deeper")
    );
}

/// Nesting up to the limit is analysed, on a small stack too.
#[test]
fn nesting_below_the_limit_is_analysed_on_a_small_stack() {
    let deep = MAX_NESTING - 10;
    let sources = [
        format!("x = {}1{}\n", "(".repeat(deep), ")".repeat(deep)),
        format!("x = {}1{}\n", "[".repeat(deep), "]".repeat(deep)),
        format!("x = {}1\n", "not ".repeat(deep)),
        format!("x = {}1\n", "a if b else ".repeat(deep)),
        format!("x = {}1\n", "a + ".repeat(deep)),
        format!("x = {}1\n", "lambda: ".repeat(deep)),
        format!("x = a{}\n", ".b()".repeat(deep / 2)),
        (0..1_000)
            .map(|depth| format!("{}if a:\n", " ".repeat(depth)))
            .collect::<String>()
            + &" ".repeat(deep)
            + "pass",
    ];
    let small = std::thread::Builder::new().stack_size(256 << 10);
    let work = small.spawn(move || {
        for source in sources {
            analyse(&source).expect("within the limit");
        }
    });
    work.expect("a thread starts").join().expect("the stack holds");
}

/// What is long but flat is not taken for nested.
#[test]
fn long_flat_sources_are_analysed() {
    let long = 20_000;
    for source in [
        format!("x = [{}]\n", "-1, ".repeat(long)),
        format!("x = {}c\n", "a.b == -1 and ".repeat(long)),
        format!("x = {}\n", "'a' ".repeat(long)),
        format!("x = {{{}}}\n", "'a': lambda b, c: b + c, ".repeat(long)),
        "if a:\n    pass\n".to_owned() + &"elif b:\n    pass\n".repeat(long),
    ] {
        analyse(&source).expect("the source is flat");
    }
}

/// An encoding is what PEP 263 says, or an error that names it.
#[test]
fn encodings_follow_the_declaration() {
    let decoded = |bytes: &[u8]| {
        decode(bytes)
            .map(|text| text.into_owned())
            .map_err(|error| error.to_string())
    };
    assert_eq!(decoded(b"\xef\xbb\xbfx"), Ok("x".to_owned()));
    assert_eq!(decoded("é".as_bytes()), Ok("é".to_owned()));
    assert_eq!(
        decoded(b"# coding: latin-1\n\xe9"),
        Ok("# coding: latin-1\né".to_owned())
    );
    assert_eq!(
        decoded(b"\n# -*- coding: iso-8859-15 -*-\n\xa4"),
        Ok("\n# -*- coding: iso-8859-15 -*-\n€".to_owned())
    );
    assert_eq!(
        decoded(b"# coding=cp1252\n\x80\xe9"),
        Ok("# coding=cp1252\n€é".to_owned())
    );
    assert!(decoded(b"x\n# coding: latin-1\n\xe9").is_err());
    assert!(decoded(b"x = '\xe9'").is_err_and(|error| error.contains("byte 5")));
    assert_eq!(decoded(b"# coding: koi8_r\n\xc1"), Ok("# coding: koi8_r\nа".to_owned()));
    assert_eq!(
        decoded(b"# coding: shift_jis\n\x82\xa0"),
        Ok("# coding: shift_jis\nあ".to_owned())
    );
    assert!(decoded(b"# coding: shift_jis\n\x82").is_err_and(|error| error.contains("not in it")));
    assert!(decoded(b"# coding: utf-16\n").is_err_and(|error| error.contains("unknown encoding")));
    assert!(decoded(b"# coding: klingon\n").is_err_and(|error| error.contains("klingon")));
    assert!(decoded(b"\xef\xbb\xbf# coding: latin-1\n").is_err());
    assert!(decoded(b"# coding: ascii\n\xe9").is_err_and(|error| error.contains("ascii")));
}

/// Each bad file is an entry of its own, and the good ones are analysed all the same.
#[test]
fn bad_files_do_not_stop_the_others() {
    let folder = std::env::temp_dir().join(format!("pyagent-code-metrics-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder is made");
    let write = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, bytes).expect("the file is written");
        path
    };
    let paths = [
        write("good.py", b"def f(): pass\n"),
        folder.join("missing.py"),
        folder.clone(),
        write("large.py", &vec![b'\n'; MAX_FILE_BYTES as usize + 1]),
        write("binary.py", b"\xff\xfe"),
        write("broken.py", b"def\n"),
        write("last.py", b"if a: pass\n"),
    ];
    for threads in [1, 3, 1_000] {
        let reports = analyse_files(&paths, threads);
        assert!(reports.iter().zip(&paths).all(|(report, path)| report.path == *path));
        let results: Vec<_> = reports.into_iter().map(|report| report.result).collect();
        assert!(matches!(
            &results[..],
            [
                Ok(_),
                Err(FileError::Read(_)),
                Err(FileError::NotAFile),
                Err(FileError::TooLarge),
                Err(FileError::Decode(_)),
                Err(FileError::Parse(_)),
                Ok(_)
            ]
        ));
    }
    std::fs::remove_dir_all(&folder).expect("the folder is removed");
}

proptest! {
    /// Any text gives metrics or an error, and every line of it is of one kind.
    #[test]
    fn any_text_is_survived(source in "([a-z0-9_ =+.,:;#'\"\\\\()\\[\\]{}\n\t\r\x0c\u{2028}é]|if |def |f'|'''|not |lambda ){0,60}") {
        if let Ok(metrics) = analyse(&source) {
            prop_assert!((0.0..=100.0).contains(&metrics.maintainability));
        }
    }

    /// Any bytes decode or give an error.
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes).map(|text| analyse(&text));
    }
}
