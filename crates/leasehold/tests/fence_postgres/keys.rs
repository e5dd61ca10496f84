//! Keys of every type, quoted and composite names: the text of a key does not depend on the session.

use leasehold::fence::postgres::{InstallOptions, Remember};

use crate::support::{ADA, BOB, Database, options, under_token};

/// Type, a value, and the text that a lease must be taken under.
const TYPES: [(&str, &str, &str); 36] = [
    ("smallint", "7", "7"),
    ("int", "-7", "-7"),
    ("bigint", "9223372036854775807", "9223372036854775807"),
    ("text", "'a''b%c\"d'", "a'b%c\"d"),
    ("varchar(20)", "'Straße'", "Straße"),
    ("char(5)", "'ab'", "ab"),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("bool", "true", "true"),
    ("numeric", "1.500", "1.5"),
    ("date", "'2026-11-17'", "2026-11-17"),
    ("timestamp", "'2026-11-17 10:00:00.5'", "2026-11-17T10:00:00.500000"),
    ("timestamptz", "'2026-11-17 10:00:00+02'", "2026-11-17T08:00:00.000000Z"),
    ("time", "'10:00:00'", "10:00:00"),
    ("bytea", "'\\xDEAD'", "dead"),
    ("inet", "'10.0.0.1'", "10.0.0.1/32"),
    ("int4range", "'[1,3]'", "[1,4)"),
    ("int[]", "'{1,2}'", "{1,2}"),
    ("jsonb", "'{\"b\":1,\"a\":2}'", "{\"a\": 2, \"b\": 1}"),
    ("mood", "'fine'", "fine"),
    ("small", "3", "3"),
    // What has no date, and what is long ago.
    ("date", "'infinity'", "infinity"),
    ("date", "'-infinity'", "-infinity"),
    ("date", "'0044-03-15 BC'", "0044-03-15 BC"),
    ("timestamp", "'infinity'", "infinity"),
    ("timestamp", "'0044-03-15 12:00 BC'", "0044-03-15T12:00:00.000000 BC"),
    ("timestamptz", "'-infinity'", "-infinity"),
    ("timestamptz", "'0044-03-15 12:00+00 BC'", "0044-03-15T12:00:00.000000Z BC"),
    // What a session prints by its settings.
    ("float8", "0.1::float8 + 0.2", "0.30000000000000004"),
    ("float4", "'1.1'", "1.1"),
    ("interval", "'1 day 02:00'", "1 day 02:00:00"),
    ("daterange", "'[2026-11-17,2026-11-18)'", "[2026-11-17,2026-11-18)"),
    ("tstzrange", "'[2026-11-17 00:00+00,)'", "[\"2026-11-17 00:00:00+00\",)"),
    ("date[]", "ARRAY[date '2026-11-17']", "{2026-11-17}"),
    ("bytea[]", "ARRAY['\\xdead'::bytea]", "{\"\\\\xdead\"}"),
    ("money", "12.5::money", "$12.50"),
    ("timetz", "'10:00:00+02'", "10:00:00+02"),
];

/// Settings of two sessions that print many types differently.
const SESSIONS: [&str; 2] = [
    "SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'; SET IntervalStyle = 'iso_8601'; SET bytea_output = 'escape'; SET extra_float_digits = -10",
    "SET TimeZone = 'America/New_York'; SET DateStyle = 'ISO'; SET bytea_output = 'hex'; SET search_path = pg_catalog, public",
];

/// Goal: for every type the resource is the documented text, in every session.
/// Method: a token that speaks for that text alone, in sessions with other settings, inserts, updates and deletes.
#[tokio::test]
async fn keys_of_every_type_have_one_text_in_every_session() {
    for remember in [Remember::Row, Remember::Name] {
        let database =
            Database::new("CREATE TYPE mood AS ENUM ('fine'); CREATE DOMAIN small AS int CHECK (VALUE < 10)").await;
        for (at, (kind, value, text)) in TYPES.into_iter().enumerate() {
            let table = format!("t{at}");
            let make = format!("CREATE TABLE {table} (k {kind} PRIMARY KEY, v text)");
            database.admin.batch_execute(&make).await.unwrap();
            database.install(&options(&table, &["k"], &format!("{table}/{{}}"), remember)).await;
            let first = format!("41:aaaaaaaaaaaaaaaa\t{table}/{text}");
            let second = format!("42:bbbbbbbbbbbbbbbb\t{table}/{text}");
            let clients = [database.client().await, database.client().await];
            for (client, settings) in clients.iter().zip(SESSIONS) {
                client.batch_execute(settings).await.unwrap();
            }
            let insert = format!("INSERT INTO public.{table} VALUES ({value}, 'x')");
            under_token(&clients[0], &first, &insert).await.unwrap_or_else(|error| panic!("{kind}: {error:?}"));
            let update = format!("UPDATE public.{table} SET v = 'y' WHERE k = {value}");
            under_token(&clients[1], &first, &update).await.unwrap_or_else(|error| panic!("{kind}: {error:?}"));
            let delete = format!("DELETE FROM public.{table} WHERE k = {value}");
            under_token(&clients[1], &second, &delete).await.unwrap_or_else(|error| panic!("{kind}: {error:?}"));
            let late = under_token(&clients[0], &first, &insert).await.unwrap_err();
            assert_eq!(late.code().unwrap().code(), "LH001", "{kind}");
        }
    }
}

/// Goal: a key that changes to one that a session prints alike is a key that changes: its old resource is remembered.
/// Method: in a session that prints both alike, a newer holder moves a row away; the older one brings the old key back.
#[tokio::test]
async fn a_key_that_is_printed_alike_is_still_another_key() {
    for remember in [Remember::Row, Remember::Name] {
        for (kind, old, new) in [
            ("float8", "1.0000000000001", "1.0000000000002"),
            ("date", "'infinity'", "'-infinity'"),
            ("date", "'0044-03-15'", "'0044-03-15 BC'"),
        ] {
            let database = Database::new(&format!(
                "CREATE TABLE t (k {kind} PRIMARY KEY, v text); INSERT INTO t VALUES ({old}, 'x')"
            ))
            .await;
            database.install(&options("t", &["k"], "it/{}", remember)).await;
            let client = database.client().await;
            client.batch_execute("SET extra_float_digits = -10").await.unwrap();
            under_token(&client, BOB, &format!("UPDATE t SET k = {new}")).await.unwrap();
            let back = under_token(&client, ADA, &format!("INSERT INTO t VALUES ({old}, 'y')")).await.unwrap_err();
            assert_eq!(back.code().unwrap().code(), "LH001", "{remember:?} {kind}: {back:?}");
        }
    }
}

/// Goal: names of the greatest length work, and a longer one is no other table.
#[tokio::test]
async fn names_of_63_bytes_are_fenced() {
    let (table, key) = ("t".repeat(63), "k".repeat(63));
    for remember in [Remember::Row, Remember::Name] {
        let database = Database::new(&format!("CREATE TABLE {table} ({key} int PRIMARY KEY, v text)")).await;
        database.install(&options(&table, &[&key], "it/{}", remember)).await;
        assert_eq!(database.holes().await, []);
        assert_eq!(database.write(BOB, &format!("INSERT INTO {table} VALUES (1, 'x')")).await, "ok");
        assert_eq!(database.write(ADA, &format!("UPDATE {table} SET v = 'y'")).await, "LH001");
        let longer = options(&format!("{table}t"), &[&key], "it/{}", remember);
        assert!(database.refuses_install(&longer).await.contains("no table"));
        let longer = options(&table, &[&format!("{key}k")], "it/{}", remember);
        assert!(database.refuses_install(&longer).await.contains("no column"));
    }
}

/// Goal: a type whose equal values may have unequal texts is warned of.
#[tokio::test]
async fn keys_without_one_text_are_warned_of() {
    for (kind, warned) in
        [("float8", true), ("interval", true), ("daterange", true), ("int", false), ("numeric", false), ("text", false)]
    {
        let database = Database::new(&format!("CREATE TABLE t (k {kind} PRIMARY KEY)")).await;
        let report = database.install(&options("t", &["k"], "t/{}", Remember::Row)).await;
        assert_eq!(
            report.notes.iter().any(|note| note.contains(&format!("type {kind}")) || note.contains("of type")),
            warned,
            "{kind}: {:?}",
            report.notes
        );
    }
}

/// Goal: in composite keys two rows never have one name.
#[tokio::test]
async fn composite_keys_do_not_collide() {
    for remember in [Remember::Row, Remember::Name] {
        let database = Database::new("CREATE TABLE t (a text, b text, v int, PRIMARY KEY (a, b))").await;
        let report = database.install(&options("t", &["a", "b"], "t/{}", remember)).await;
        assert_eq!(report.store, remember);
        assert_eq!(database.write("41\tt/a%2Fb/c", "INSERT INTO t VALUES ('a/b', 'c', 1)").await, "ok");
        assert_eq!(database.write("41\tt/a%2Fb/c", "INSERT INTO t VALUES ('a', 'b/c', 1)").await, "LH006");
        assert_eq!(database.write("41\tt/a/b%2Fc", "INSERT INTO t VALUES ('a', 'b/c', 1)").await, "ok");
        assert_eq!(database.write("41\tt/100%25/x", "INSERT INTO t VALUES ('100%', 'x', 1)").await, "ok");
    }
    let database = Database::new("CREATE TABLE t (a int, b int, v int, PRIMARY KEY (a, b))").await;
    database.install(&options("t", &["a", "b"], "event/{b}/row/{a}", Remember::Row)).await;
    assert_eq!(database.write("41\tevent/2/row/1", "INSERT INTO t VALUES (1, 2, 0)").await, "ok");
}

/// Goal: names are taken as written: quoted, with spaces, quotes and schemas.
#[tokio::test]
async fn strange_names_are_quoted() {
    for remember in [Remember::Row, Remember::Name] {
        let database = Database::new(
            r#"CREATE SCHEMA "My Shop"; CREATE TABLE "My Shop"."Se""at's" ("Seat id" int PRIMARY KEY, "na'me" text);
               CREATE TABLE "dotted.name" (id int PRIMARY KEY); CREATE TABLE "SEATS" (id int PRIMARY KEY)"#,
        )
        .await;
        let report = database.install(&options("My Shop.Se\"at's", &["Seat id"], "it's {}\\", remember)).await;
        assert_eq!(report.table, r#""My Shop"."Se""at's""#);
        let insert = r#"INSERT INTO "My Shop"."Se""at's" VALUES (1, 'x')"#;
        assert_eq!(database.write("42\tit's 1\\", insert).await, "ok");
        assert_eq!(database.write("", &insert.replace("(1,", "(2,")).await, "LH002");
        assert_eq!(database.write(ADA, r#"UPDATE "My Shop"."Se""at's" SET "na'me" = 'y'"#).await, "LH001");
        for table in ["dotted.name", "SEATS"] {
            database.install(&options(table, &["id"], "x/{}", remember)).await;
        }
        let folded = options("seats", &["id"], "x/{}", remember);
        assert!(database.refuses_install(&folded).await.contains("no table seats"));
        assert_eq!(database.holes().await, []);
    }
}

/// Goal: rows keep their own fence only where the keys are surely theirs; otherwise the tool says why not.
#[tokio::test]
async fn the_store_is_chosen_by_the_keys() {
    let database = Database::new(
        "CREATE TABLE plain (id int PRIMARY KEY, e int);
         CREATE TABLE several (id int NOT NULL, e int);
         CREATE TABLE late (id int UNIQUE DEFERRABLE, e int); ALTER TABLE late ALTER id SET NOT NULL;
         CREATE TABLE part (id int NOT NULL, e int); CREATE UNIQUE INDEX ON part (id) WHERE e > 0;
         CREATE TABLE expr (id int NOT NULL); CREATE UNIQUE INDEX ON expr ((id + 1));
         CREATE TABLE nulls (id int UNIQUE);
         CREATE UNLOGGED TABLE brief (id int PRIMARY KEY);
         CREATE TABLE made (n int NOT NULL, id int GENERATED ALWAYS AS (n + 1) STORED UNIQUE NOT NULL);
         CREATE TABLE own (id int PRIMARY KEY, leasehold_fence int)",
    )
    .await;
    for (table, store, why) in [
        ("plain", Remember::Row, ""),
        ("several", Remember::Name, "unique index"),
        ("late", Remember::Name, "unique index"),
        ("part", Remember::Name, "unique index"),
        ("expr", Remember::Name, "unique index"),
        ("nulls", Remember::Name, "NULL"),
        ("brief", Remember::Name, "unlogged"),
        ("made", Remember::Name, "generated"),
    ] {
        let chosen =
            InstallOptions { remember: None, ..options(table, &["id"], &format!("{table}/{{}}"), Remember::Row) };
        let report = database.install(&chosen).await;
        assert_eq!(report.store, store, "{table}");
        assert_eq!(report.notes.is_empty(), why.is_empty(), "{table}: {:?}", report.notes);
        assert!(report.notes.iter().all(|note| note.contains(why)), "{table}: {:?}", report.notes);
        if store == Remember::Name {
            let forced = options(table, &["id"], &format!("{table}/{{}}"), Remember::Row);
            assert!(database.refuses_install(&forced).await.contains("--remember name"), "{table}");
        }
    }
    let own = InstallOptions { remember: None, ..options("own", &["id"], "own/{}", Remember::Row) };
    assert!(database.refuses_install(&own).await.contains("of its own"));
    assert_eq!(database.write("42\tmade/6", "INSERT INTO made VALUES (5)").await, "ok");
    assert_eq!(database.write("42\tnulls/", "INSERT INTO nulls VALUES (NULL)").await, "ok");
}

/// Goal: other triggers may change the key before and after ours: the fence is asked for the key that is stored.
#[tokio::test]
async fn existing_triggers_that_change_the_key_are_seen_through() {
    for remember in [Remember::Row, Remember::Name] {
        for name in ["aa_shift", "zy_shift"] {
            let database = Database::new(&format!(
                "CREATE TABLE seats (seat_id int PRIMARY KEY, owner text);
                 CREATE FUNCTION shift() RETURNS trigger LANGUAGE plpgsql AS
                    $$ BEGIN NEW.seat_id := NEW.seat_id + 1000; RETURN NEW; END $$;
                 CREATE TRIGGER {name} BEFORE INSERT ON seats FOR EACH ROW EXECUTE FUNCTION shift()"
            ))
            .await;
            database.install(&options("seats", &["seat_id"], "seat/{}", remember)).await;
            let insert = "INSERT INTO seats VALUES (1, 'x')";
            assert_eq!(database.write(&format!("{BOB}\tseat/1"), insert).await, "LH006", "{remember:?} {name}");
            assert_eq!(database.write(&format!("{BOB}\tseat/1001"), insert).await, "ok", "{remember:?} {name}");
            assert_eq!(database.write(BOB, "DELETE FROM seats").await, "ok");
            assert_eq!(database.write(ADA, insert).await, "LH001", "{remember:?} {name}");
        }
    }
}
