// Nothing is held: how to take the first lock, three ways.

import { Copyable } from '../shared/bits';
import type { Live } from './live';

export function Empty({ live }: { live: Live }) {
  const guarded = live.status?.auth === 'required';
  return (
    <div class="empty">
      <h2>Nothing is held</h2>
      <p>Take a lock for a minute, in whichever way you like. It shows here at once.</p>
      {commands(location.origin, location.hostname, guarded).map(([label, text]) => (
        <Copyable label={label} text={text} />
      ))}
      <p class="quiet">
        redis-cli and leasehold speak to port 7401 unless the server was started with another <code>--resp</code>.
      </p>
    </div>
  );
}

function commands(origin: string, host: string, guarded: boolean): [string, string][] {
  const bearer = guarded ? ` \\\n  -H "Authorization: Bearer $LEASEHOLD_API_KEY"` : '';
  const auth = guarded ? 'REDISCLI_AUTH=$LEASEHOLD_API_KEY ' : '';
  return [
    [
      'curl',
      `curl ${origin}/v1/leases${bearer} \\\n  -H 'Content-Type: application/json' \\\n` +
        `  -d '{"resources":["my-first-lock"],"ttl_ms":60000,"holder":"curl"}'`,
    ],
    ['redis-cli', `${auth}redis-cli -h ${host} -p 7401 \\\n  LEASE ACQUIRE 60000 HOLDER redis-cli RESOURCES my-second-lock`],
    ['leasehold', `leasehold acquire my-third-lock --ttl 60s \\\n  --url leasehold://${host}:7401`],
  ];
}
