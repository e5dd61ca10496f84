//! Who may install a fence: said before anything is tried, with what to do about it.
//!
//! # Law
//!
//! Whatever is in the schema `leasehold_fence` belongs to the owner of the schema. The functions run with the rights of their
//! owner and call each other: with two owners a refusal would end in "permission denied".

use leasehold_postgres::tokio_postgres::{Error as SqlError, GenericClient};

use super::sql_text::quote_ident;
use super::table::TableShape;

/// What the role of this session may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InstallPermission {
    role: String,
    table: String,
    table_owner: String,
    owns_table: bool,
    /// None: there is no schema yet.
    schema_owner: Option<String>,
    owns_schema: bool,
    database: String,
    may_create_schema: bool,
}

impl InstallPermission {
    /// Why this role cannot install a fence on the table, and what to do; none: it can.
    pub fn why_not(&self) -> Option<String> {
        let Self { role, table, table_owner, database, .. } = self;
        if !self.owns_table {
            return Some(format!("only the owner of {table} can fence it: install as {table_owner}, not as {role}"));
        }
        match &self.schema_owner {
            Some(owner) if !self.owns_schema => Some(format!(
                "the schema leasehold_fence belongs to {owner}: install as a role that is a member of {owner} and of \
                 {table_owner}, not as {role}"
            )),
            None if !self.may_create_schema => Some(format!(
                "{role} may not create the schema leasehold_fence: GRANT CREATE ON DATABASE {} TO {}",
                quote_ident(database),
                quote_ident(role)
            )),
            _ => None,
        }
    }

    /// The statements that give what was made for a guard to the owner of the schema, whoever runs them. None where there is
    /// no schema yet: who makes it owns it all.
    pub fn hand_over(&self, guard: &str, functions: &[String]) -> Option<String> {
        let owner = quote_ident(self.schema_owner.as_ref()?);
        let mut sql = format!("ALTER SEQUENCE leasehold_fence.{guard}_rejected OWNER TO {owner};\n");
        for function in functions {
            sql += &format!("ALTER FUNCTION leasehold_fence.{function}() OWNER TO {owner};\n");
        }
        Some(sql)
    }
}

/// Reads what the role of this session may do.
pub(super) async fn read_permission(
    client: &impl GenericClient,
    shape: &TableShape,
) -> Result<InstallPermission, SqlError> {
    let sql = "SELECT current_user::text, pg_get_userbyid(c.relowner)::text, pg_has_role(c.relowner, 'USAGE'),
            pg_get_userbyid(n.nspowner)::text, coalesce(pg_has_role(n.nspowner, 'USAGE'), false),
            current_database()::text, has_database_privilege(current_database(), 'CREATE')
        FROM pg_class c LEFT JOIN pg_namespace n ON n.nspname = 'leasehold_fence' WHERE c.oid = $1";
    let row = client.query_one(sql, &[&shape.oid]).await?;
    Ok(InstallPermission {
        role: row.try_get(0)?,
        table: shape.display_name(),
        table_owner: row.try_get(1)?,
        owns_table: row.try_get(2)?,
        schema_owner: row.try_get(3)?,
        owns_schema: row.try_get(4)?,
        database: row.try_get(5)?,
        may_create_schema: row.try_get(6)?,
    })
}
