//! A table of bad files, and what is right read right.

use proptest::prelude::*;

use super::*;
use crate::layout::{Area, Layout, Seat};

fn seat(id: &str, section: &str, row: &str, number: u32, price: u64) -> Seat {
    Seat { id: id.into(), section: section.into(), row: row.into(), number, price }
}

/// `line field code` of each problem.
fn sentences(problems: Vec<ImportProblem>) -> Vec<String> {
    let word = |code: ImportCode| serde_json::to_value(code).unwrap().as_str().unwrap().to_owned();
    let line = |p: &ImportProblem| format!("{} {} {}", p.line, p.field.as_deref().unwrap_or("-"), word(p.code));
    problems.iter().map(line).collect()
}

/// Goal: what spreadsheets write is read: a mark, CRLF, quotes, semicolons, empty lines, any order of columns.
#[test]
fn csv_as_spreadsheets_write_it() {
    let expected = Layout {
        seats: vec![seat("A-1", "Stalls, left", "A", 1, 4500), seat("A-2", "Stalls, left", "A", 2, 4500)],
        areas: vec![Area { id: "floor".into(), capacity: 300, price: 3000 }],
    };
    for text in [
        "id,section,row,number,price,capacity\nA-2,\"Stalls, left\",A,2,4500,\nA-1,\"Stalls, left\",A,1,4500,\nfloor,,,,3000,300\n",
        "\u{feff}id,section,row,number,price,capacity\r\nA-1,\"Stalls, left\",A,1,4500,\r\n\r\nA-2,\"Stalls, left\",A,2,4500\r\nfloor,,,,3000,300",
        "Price;ID;Row;Section;Number;Capacity\n4500;A-1;A;Stalls, left;1;\n;;;;;\n4500;A-2;A;Stalls, left;2;\n3000;floor;;;;300\n",
    ] {
        assert_eq!(csv(text.as_bytes()), Ok(expected.clone()), "{text}");
    }
    let quoted = "id,section,row,number,price\n\"say \"\"A\"\"\",S,A,1,1\n";
    assert_eq!(csv(quoted.as_bytes()).unwrap().seats[0].id, "say \"A\"");
}

/// Goal: every bad CSV has its problem, on its line, under its code.
#[test]
fn bad_csv_is_told_by_line() {
    let long = "x".repeat(65);
    for (text, problems) in [
        ("", vec!["0 - empty"]),
        ("\u{feff} \r\n", vec!["0 - empty"]),
        ("id,section,row,number,price\n", vec!["0 - empty"]),
        (
            "id,price,colour\nA,1,red\n",
            vec!["1 colour unknown_field", "2 section missing", "2 row missing", "2 number missing"],
        ),
        ("id,id,section,row,number,price\n", vec!["1 id repeated_field"]),
        ("section,row\n", vec!["1 id missing", "1 price missing"]),
        ("id,section,row,number,price\nA,S,R,1,4500\nA,S,R,2,4500\n", vec!["3 id duplicate_id"]),
        ("id,section,row,number,price\nA,S,R,1,4500\nB,S,R,1,4500\n", vec!["3 number duplicate_place"]),
        ("id,section,row,number,price\nA,S,R,1,45.00\n", vec!["2 price bad_price"]),
        ("id,section,row,number,price\nA,S,R,1,-5\n", vec!["2 price bad_price"]),
        ("id,section,row,number,price\nA,S,R,1,€45\n", vec!["2 price bad_price"]),
        ("id,section,row,number,price\nA,S,R,1,1000000000001\n", vec!["2 price bad_price"]),
        ("id,section,row,number,price\nA,S,R,1,99999999999999999999999\n", vec!["2 price bad_price"]),
        (
            "id,section,row,number,price\nA,S,R,one,1\nB,S,R,+2,1\nC,S,R,4294967296,1\n",
            vec!["2 number bad_number", "3 number bad_number", "4 number bad_number"],
        ),
        ("id,section,row,number,price\n,S,R,1,1\n", vec!["2 id missing"]),
        (&format!("id,section,row,number,price\n{long},S,R,1,1\n"), vec!["2 id bad_id"]),
        ("id,section,row,number,price\na/b,S,R,1,1\n", vec!["2 id bad_id"]),
        ("id,section,row,number,price\n\"a\nb\",S,R,1,1\nA,S,R,2,x\n", vec!["2 id bad_id", "4 price bad_price"]),
        ("id,section,row,number,price\n A,S,R,1,1\n", vec!["2 id bad_id"]),
        ("id,section,row,number,price\nA,S,R,1,1,,\nB,S,R,2,1,oops\n", vec!["3 - unreadable"]),
        (
            "id,section,row,number,price,capacity\nA,S,R,1,1,5\nB,,,,1,0\nC,,,,1,1000001\nD,,,,,5\n",
            vec!["2 capacity mixed", "3 capacity bad_number", "4 capacity bad_number", "5 price missing"],
        ),
        ("id,section,row,number,price,capacity\nA,S,R,1,1,\nA,,,,1,5\n", vec!["3 id duplicate_id"]),
    ] {
        assert_eq!(
            csv(text.as_bytes()).map_err(sentences),
            Err(problems.into_iter().map(str::to_owned).collect()),
            "{text}"
        );
    }
    let latin = [b"id,section,row,number,price\nA,S,R,1,1\n".as_slice(), b"B,\xe9,R,2,1\n"].concat();
    assert_eq!(csv(&latin).map_err(sentences), Err(vec!["3 - unreadable".into()]));
}

/// Goal: seats one by one, sections of rows and areas are read, and ids are made where there are none.
#[test]
fn json_in_all_its_shapes() {
    let text = r#"{
      "seats": [{"id": "A-1", "section": "Stalls", "row": "A", "number": 1, "price": 4500}],
      "sections": [
        {"id": "Circle", "price": 3500, "rows": [
          {"id": "B", "count": 2},
          {"id": "C", "seats": [{"number": 7}, {"id": "box", "number": 8, "price": 0}]},
          {"id": "D", "count": 1, "first": 12, "price": 9}]}],
      "areas": [{"id": "floor", "capacity": 300, "price": 3000}]
    }"#;
    let layout = json(text.as_bytes()).unwrap();
    assert_eq!(
        layout.seats,
        [
            seat("A-1", "Stalls", "A", 1, 4500),
            seat("Circle-B-1", "Circle", "B", 1, 3500),
            seat("Circle-B-2", "Circle", "B", 2, 3500),
            seat("Circle-C-7", "Circle", "C", 7, 3500),
            seat("box", "Circle", "C", 8, 0),
            seat("Circle-D-12", "Circle", "D", 12, 9),
        ]
    );
    assert_eq!(layout.areas, [Area { id: "floor".into(), capacity: 300, price: 3000 }]);
    let (same, others) = parts(text.replacen('{', r#"{"name": "Gala", "#, 1).as_bytes(), &["name"]).unwrap();
    assert_eq!((same, others), (layout, vec![("name".to_owned(), "\"Gala\"".to_owned())]));
}

/// Goal: every bad JSON has its problem, on its line, under its code.
#[test]
fn bad_json_is_told_by_line() {
    let seat = |more: &str| {
        format!("{{\"seats\": [\n{{\"id\":\"A\",\"section\":\"S\",\"row\":\"R\",\"number\":1,\"price\":1}},\n{more}]}}")
    };
    for (text, problems) in [
        ("", vec!["0 - empty"]),
        ("{}", vec!["0 - empty"]),
        ("{\"seats\": []}", vec!["0 - empty"]),
        ("{\"seats\": null, \"areas\": null}", vec!["0 - empty"]),
        ("[]", vec!["1 - unreadable"]),
        ("{\n\"seats\": [\n", vec!["3 - unreadable"]),
        ("{\"seats\"\n= 1}", vec!["2 - unreadable"]),
        ("{\"seats\": 5,\n\"areas\": {}}", vec!["1 seats bad_type", "2 areas bad_type"]),
        ("{\"chairs\": []}", vec!["1 chairs unknown_field"]),
        ("{\"seats\": [],\n\"seats\": []}", vec!["2 seats repeated_field"]),
        ("{\"seats\": [\n5]}", vec!["2 - bad_type"]),
        (&seat("{\"id\":\"A\",\"section\":\"S\",\"row\":\"R\",\"number\":2,\"price\":1}"), vec!["3 id duplicate_id"]),
        (
            &seat("{\"id\":\"B\",\"section\":\"S\",\"row\":\"R\",\"number\":1,\"price\":1}"),
            vec!["3 number duplicate_place"],
        ),
        (
            &seat("{\"id\":7,\"section\":\"S\",\"row\":\"R\",\"number\":\"2\",\"price\":4.5}"),
            vec!["3 id bad_type", "3 number bad_number", "3 price bad_price"],
        ),
        (
            &seat(
                "{\"id\":\"B\",\"section\":\"S\",\"row\":\"R\",\"number\":2,\"price\":1,\n\"capacity\":3,\"colour\":1}",
            ),
            vec!["4 capacity unknown_field", "4 colour unknown_field"],
        ),
        (
            &seat("{\"id\":\"B\",\"id\":\"C\",\"section\":\"S\",\"row\":\"R\",\"number\":2,\"price\":1}"),
            vec!["3 id repeated_field"],
        ),
        (
            &seat("{\"id\":\"B\",\"section\":null,\"row\":\"\",\"number\":2,\"price\":1}"),
            vec!["3 section missing", "3 row bad_id"],
        ),
        ("{\"sections\": [{\"id\": \"S\"}]}", vec!["1 rows missing"]),
        ("{\"sections\": [{\"id\": \"S\", \"rows\": [\n{\"id\": \"R\"}]}]}", vec!["2 seats mixed"]),
        (
            "{\"sections\": [{\"id\": \"S\", \"rows\": [\n{\"id\": \"R\", \"price\": 1, \"count\": 100001}]}]}",
            vec!["2 count bad_number"],
        ),
        (
            "{\"sections\": [{\"id\": \"S\", \"rows\": [{\"id\": \"R\",\n\"count\": 1, \"wide\": 1}]}]}",
            vec!["2 wide unknown_field", "1 price missing"],
        ),
    ] {
        assert_eq!(
            json(text.as_bytes()).map_err(sentences),
            Err(problems.into_iter().map(str::to_owned).collect()),
            "{text}"
        );
    }
}

/// Goal: limits hold: bytes, seats, and how many problems are told.
#[test]
fn limits_hold() {
    let big = vec![b' '; MAX_FILE_BYTES + 1];
    assert_eq!(csv(&big).map_err(sentences), Err(vec!["0 - too_much".into()]));
    assert_eq!(json(&big).map_err(sentences), Err(vec!["0 - too_much".into()]));
    let row = |count: usize| {
        format!("{{\"sections\":[{{\"id\":\"S\",\"rows\":[{{\"id\":\"R\",\"price\":1,\"count\":{count}}}]}}]}}")
    };
    assert_eq!(json(row(MAX_IMPORTED_SEATS).as_bytes()).unwrap().seats.len(), MAX_IMPORTED_SEATS);
    let two =
        r#"{"sections":[{"id":"S","rows":[{"id":"R","price":1,"count":100000},{"id":"Q","price":1,"count":1}]}]}"#;
    assert_eq!(json(two.as_bytes()).map_err(sentences), Err(vec!["1 - too_much".into()]));
    let mut wrong = "id,section,row,number,price\n".to_owned();
    (0..1000).for_each(|at| wrong.push_str(&format!("A{at},S,R,{at},x\n")));
    let problems = csv(wrong.as_bytes()).unwrap_err();
    assert_eq!(problems.len(), MAX_PROBLEMS + 1);
    assert_eq!(problems.last().unwrap().code, ImportCode::MoreProblems);
}

proptest! {
    /// Goal: what is written as CSV or JSON comes back, in the order of the hall, and twice the same.
    #[test]
    fn layouts_come_back(
        names in prop::collection::btree_set("[a-zA-Z0-9 ,;\"'é-]{1,12}", 1..20),
        prices in prop::collection::vec(0u64..10_000, 20),
        crlf: bool,
    ) {
        let names: Vec<String> = names.into_iter().map(|name| format!("x{}x", name)).collect();
        let seats: Vec<Seat> = names.iter().enumerate().map(|(at, id)| {
            seat(id, if at % 2 == 0 { "S, \"1\"" } else { "T" }, &format!("{}", at % 3), at as u32, prices[at])
        }).collect();
        let end = if crlf { "\r\n" } else { "\n" };
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let mut text = format!("id,section,row,number,price{end}");
        for seat in &seats {
            text.push_str(&format!("{},{},{},{},{}{end}", quoted(&seat.id), quoted(&seat.section), seat.row, seat.number, seat.price));
        }
        let by_csv = csv(text.as_bytes()).unwrap();
        let by_json = json(serde_json::json!({"seats": seats}).to_string().as_bytes()).unwrap();
        prop_assert_eq!(&by_csv, &by_json);
        let mut sorted = by_csv.seats.clone();
        sorted.sort_by(|a, b| a.id.cmp(&b.id));
        let mut given = seats;
        given.sort_by(|a, b| a.id.cmp(&b.id));
        prop_assert_eq!(sorted, given);
        let again = json(serde_json::to_string(&by_json).unwrap().as_bytes()).unwrap();
        prop_assert_eq!(again, by_json);
    }

    /// Goal: no file makes it panic, and there is a layout or a problem, never neither.
    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "[\\[\\]{}:,\"a-z0-9\n]{0,80}") {
        for input in [bytes.as_slice(), text.as_bytes()] {
            for read in [csv(input), json(input)] {
                if let Err(problems) = read {
                    prop_assert!(!problems.is_empty());
                }
            }
        }
    }
}
