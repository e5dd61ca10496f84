//! What the catalog says of a table that is to be fenced.

use leasehold_postgres::tokio_postgres::{Error as SqlError, GenericClient, Row};

use super::sql_text::quote_ident;
use crate::fence::refusal::FenceError;
use crate::fence::resource_template::ResourceTemplate;

/// A column, as far as a key needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyColumn {
    pub name: String,
    /// The type below all domains, by its short name: `int4`.
    pub base_type: String,
    pub is_enum: bool,
    /// Its collation holds texts for equal that are not the same.
    pub folds_text: bool,
    pub not_null: bool,
    pub generated: bool,
}

/// A table, its columns and what hangs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableShape {
    pub oid: u32,
    pub schema: String,
    pub name: String,
    /// Schema and name, quoted only where SQL needs it: for people.
    pub plain_name: String,
    /// It is itself a partition of another table.
    pub is_partition: bool,
    /// All partitions below it, quoted.
    pub partitions: Vec<String>,
    /// The same, quoted only where SQL needs it: for people.
    pub partition_names: Vec<String>,
    pub has_foreign_partition: bool,
    /// Tables that inherit from it, quoted, that have no fence of their own.
    pub children: Vec<String>,
    /// A crash of the server empties it.
    pub unlogged: bool,
    /// A subscription writes to it.
    pub subscribed: bool,
    pub columns: Vec<KeyColumn>,
    /// The columns of every unique index that is valid, whole, of plain columns and checked at once.
    pub unique_keys: Vec<Vec<String>>,
}

impl TableShape {
    /// The table, quoted, with its schema.
    pub fn quoted(&self) -> String {
        format!("{}.{}", quote_ident(&self.schema), quote_ident(&self.name))
    }

    /// The same as rows to read or change, without those of tables that inherit from it: they have fences of their own.
    pub fn own_rows(&self) -> String {
        if self.partitions.is_empty() { format!("ONLY {}", self.quoted()) } else { self.quoted() }
    }

    /// The table for people, quoted only where SQL needs it.
    pub fn display_name(&self) -> String {
        self.plain_name.clone()
    }

    /// Whether it has a column that may keep fences of rows.
    pub fn has_fence_column(&self) -> bool {
        self.columns.iter().any(|column| column.name == "leasehold_fence" && column.base_type == "text")
    }

    /// A column by its name.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`]: there is none.
    pub fn find_column(&self, name: &str) -> Result<&KeyColumn, FenceError> {
        self.columns.iter().find(|column| column.name == name).ok_or_else(|| {
            FenceError::Invalid(format!("the table {} has no column {name}: names are taken as written", self.name))
        })
    }

    /// Why rows cannot remember their own fence; none: they can.
    pub fn why_not_row(&self, template: &ResourceTemplate) -> Option<String> {
        let keys = template.key_columns();
        if keys.is_empty() {
            return Some("one name for the whole table".into());
        }
        if !template.is_one_to_one() {
            return Some(format!(
                "two rows may have one name under {}: put a / between the places of the keys",
                template.as_text()
            ));
        }
        if self.unlogged {
            return Some("the table is unlogged, and a crash would empty it with its fences".into());
        }
        for key in keys {
            match self.columns.iter().find(|column| column.name == *key) {
                None => return Some(format!("there is no column {key}")),
                Some(column) if column.generated => return Some(format!("the key {key} is generated")),
                Some(column) if !column.not_null => return Some(format!("the key {key} may be NULL")),
                Some(_) => {}
            }
        }
        let unique = self.unique_keys.iter().any(|index| index.iter().all(|column| keys.contains(column)));
        (!unique).then(|| "the keys have no unique index that is valid, whole and not deferrable".into())
    }
}

/// Finds a table by the name that a person wrote: as it stands, or `schema.table`. None: there is no such table.
pub(super) async fn find_table(client: &impl GenericClient, written: &str) -> Result<Option<u32>, SqlError> {
    let (schema, name) = written.split_once('.').unwrap_or(("", written));
    // Compared as text: to_regclass cuts a name that is too long, and finds another table by what is left.
    let sql = "SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname::text = $1 AND pg_table_is_visible(c.oid) OR c.relname::text = $2 AND n.nspname::text = $3
        ORDER BY (c.relname::text = $1 AND pg_table_is_visible(c.oid)) DESC LIMIT 1";
    let row = client.query_opt(sql, &[&written, &name, &schema]).await?;
    row.map(|row| row.try_get(0)).transpose()
}

/// Reads the shape of a table. None: there is no such table any more.
pub(super) async fn read_shape(client: &impl GenericClient, oid: u32) -> Result<Option<TableShape>, SqlError> {
    let sql = "SELECT n.nspname::text, c.relname::text, c.relkind IN ('r', 'p'), c.relispartition,
            EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = c.oid), format('%I.%I', n.nspname, c.relname),
            c.relpersistence = 'u'
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1";
    let Some(row) = client.query_opt(sql, &[&oid]).await? else { return Ok(None) };
    if !row.try_get::<_, bool>(2)? {
        return Ok(None);
    }
    let (partitions, partition_names, has_foreign_partition) = read_partitions(client, oid).await?;
    Ok(Some(TableShape {
        oid,
        schema: row.try_get(0)?,
        name: row.try_get(1)?,
        plain_name: row.try_get(5)?,
        is_partition: row.try_get(3)?,
        partitions,
        partition_names,
        has_foreign_partition,
        children: read_unfenced_children(client, oid).await?,
        unlogged: row.try_get(6)?,
        subscribed: row.try_get(4)?,
        columns: read_columns(client, oid).await?,
        unique_keys: read_unique_keys(client, oid).await?,
    }))
}

async fn read_partitions(client: &impl GenericClient, oid: u32) -> Result<(Vec<String>, Vec<String>, bool), SqlError> {
    let sql = "SELECT n.nspname::text, c.relname::text, c.relkind = 'f', format('%I.%I', n.nspname, c.relname)
        FROM pg_partition_tree($1::oid::regclass) t
        JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE t.relid <> $1::oid ORDER BY t.level, n.nspname, c.relname";
    let mut foreign = false;
    let (mut quoted, mut plain) = (Vec::new(), Vec::new());
    for row in client.query(sql, &[&oid]).await? {
        foreign |= row.try_get::<_, bool>(2)?;
        quoted.push(quoted_name(&row)?);
        plain.push(row.try_get(3)?);
    }
    Ok((quoted, plain, foreign))
}

async fn read_unfenced_children(client: &impl GenericClient, oid: u32) -> Result<Vec<String>, SqlError> {
    // A child that has a fence of its own has our trigger.
    let sql = "WITH RECURSIVE below AS (
            SELECT inhrelid FROM pg_inherits WHERE inhparent = $1
            UNION SELECT i.inhrelid FROM pg_inherits i JOIN below b ON i.inhparent = b.inhrelid)
        SELECT n.nspname::text, c.relname::text FROM below b JOIN pg_class c ON c.oid = b.inhrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE NOT c.relispartition AND NOT EXISTS (SELECT FROM pg_trigger t
            WHERE t.tgrelid = c.oid AND t.tgname = 'zz_leasehold_fence')
        ORDER BY 1, 2";
    client.query(sql, &[&oid]).await?.iter().map(quoted_name).collect()
}

fn quoted_name(row: &Row) -> Result<String, SqlError> {
    Ok(format!("{}.{}", quote_ident(row.try_get(0)?), quote_ident(row.try_get(1)?)))
}

async fn read_columns(client: &impl GenericClient, oid: u32) -> Result<Vec<KeyColumn>, SqlError> {
    let sql = "WITH RECURSIVE below (attnum, typ) AS (
            SELECT attnum, atttypid FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped
            UNION ALL SELECT b.attnum, t.typbasetype FROM below b JOIN pg_type t ON t.oid = b.typ WHERE t.typtype = 'd')
        SELECT a.attname::text, t.typname::text, t.typtype = 'e', a.attnotnull, a.attgenerated <> '',
            NOT coalesce(l.collisdeterministic, true)
        FROM pg_attribute a JOIN below b ON b.attnum = a.attnum JOIN pg_type t ON t.oid = b.typ AND t.typtype <> 'd'
        LEFT JOIN pg_collation l ON l.oid = a.attcollation
        WHERE a.attrelid = $1 ORDER BY a.attnum";
    let column = |row: &Row| {
        Ok(KeyColumn {
            name: row.try_get(0)?,
            base_type: row.try_get(1)?,
            is_enum: row.try_get(2)?,
            folds_text: row.try_get(5)?,
            not_null: row.try_get(3)?,
            generated: row.try_get(4)?,
        })
    };
    client.query(sql, &[&oid]).await?.iter().map(column).collect()
}

async fn read_unique_keys(client: &impl GenericClient, oid: u32) -> Result<Vec<Vec<String>>, SqlError> {
    let sql = "SELECT ARRAY(SELECT a.attname::text FROM generate_series(0, i.indnkeyatts - 1) k
                JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k])
        FROM pg_index i WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indimmediate
            AND i.indpred IS NULL AND i.indexprs IS NULL";
    client.query(sql, &[&oid]).await?.iter().map(|row| row.try_get(0)).collect()
}
