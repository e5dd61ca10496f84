// One contender of a race over several Redis servers: redlock 4 over ioredis 6, as they come from npm.
//
//   node redlock-race.mjs NAME WITNESS-PORT NODE-PORT...
//
// Takes the lock again and again until its input ends. While it has the lock it counts itself in and out at the witness,
// another Redis: whoever finds somebody there has seen two holders. Prints what it did as one line of JSON.

import { setTimeout as sleep } from 'node:timers/promises';
import Redis from 'ioredis';
import Redlock from 'redlock';

const [name, witnessPort, ...ports] = process.argv.slice(2);
const witness = new Redis(Number(witnessPort), '127.0.0.1');
const nodes = ports.map((port) => new Redis(Number(port), '127.0.0.1'));
const redlock = new Redlock(nodes, { retryCount: 0 });

let done = false;
process.stdin.on('end', () => (done = true)).resume();

const result = { rounds: 0, refused: 0, overlaps: 0 };
while (!done) {
  let lock;
  try {
    lock = await redlock.lock(name, 10_000);
  } catch {
    result.refused += 1;
    await sleep(Math.random() * 5);
    continue;
  }
  if ((await witness.incr('inside')) !== 1) result.overlaps += 1;
  await sleep(Math.random() * 2);
  await witness.decr('inside');
  result.rounds += 1;
  await lock.unlock().catch(() => {});
  await sleep(Math.random() * 3);
}
console.log(JSON.stringify(result));
for (const client of [witness, ...nodes]) client.disconnect();
