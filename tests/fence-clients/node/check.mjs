// node-postgres: the recipe of the guide on a pool of one connection.
import pg from "pg";
import { sell, why } from "./recipe.mjs";

const { DATABASE, NEW, OLD } = process.env;
const pool = new pg.Pool({ connectionString: DATABASE, max: 1 });
const steps = [
  () => sell(pool, NEW, 14, "bob"),
  () => sell(pool, OLD, 14, "ada"),
  () => pool.query("UPDATE seats SET owner = 'nobody' WHERE seat_id = 14"),
  () => sell(pool, NEW, 14, "bob again"),
];
for (const step of steps) {
  try {
    await step();
    console.log("null");
  } catch (error) {
    console.log(JSON.stringify(why(error)));
  }
}
await pool.end();
