// One of several processes that want the same lock: PORT NAME COUNTER ROUNDS. The same as python/contender.py, by redlock.
//
// Inside the lock it reads a number from a file, takes its time, and writes the next one. It also makes a file that must
// not be there yet. Without mutual exclusion increments are lost, and the file is found.

import fs from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import Redis from 'ioredis'
import Redlock from 'redlock'

const [port, name, counter, rounds] = process.argv.slice(2)
const client = new Redis(Number(port))
const redlock = new Redlock([client], { retryCount: 1_000_000, retryDelay: 2, retryJitter: 2 })

for (let round = 0; round < Number(rounds); round++) {
  const lock = await redlock.lock(name, 60_000)
  const inside = fs.openSync(counter + '.inside', 'wx')
  const number = Number(fs.readFileSync(counter, 'utf8'))
  await sleep(0.5)
  fs.writeFileSync(counter, String(number + 1))
  fs.closeSync(inside)
  fs.unlinkSync(counter + '.inside')
  await lock.unlock()
}
client.disconnect()
