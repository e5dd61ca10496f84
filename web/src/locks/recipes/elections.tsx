// Who leads. A leader is the holder of a lease: its line leads to that lease, where it can be revoked.

import type { Election } from './api';
import { Cell, Line, Table, type Shared } from './board';
import { Text, Ticking } from '../../shared/bits';
import { stamp } from '../../shared/clock';
import { remaining } from '../detail';
import { ago, count, exact } from '../../shared/words';

const columns = [
  { title: 'Election' },
  { title: 'Leader', means: 'The value that the leader proclaims' },
  { title: 'Token' },
  { title: 'Since' },
  { title: 'Remaining', means: 'The term ends then, unless the leader renews it' },
  { title: 'In line', means: 'So many stand in line to lead' },
];

export function Elections({ rows, old, onOpen }: Shared & { rows: Election[] }) {
  return (
    <Table kind="elections" label="Elections" columns={columns} old={old}>
      {rows.map((row) => (
        <Line key={row.name} name={row.name} open={false} does="Opens the lease of the leader" onOpen={onOpen}>
          <Cell label="leader" kind="value">
            <Text of={row.value} />
          </Cell>
          <Cell label="token" kind="token">
            {row.token ?? <span class="none">none</span>}
          </Cell>
          <Cell label="since" kind="since">
            <Ticking
              text={(now) => ago(now - row.since)}
              exact={(now) => `leads for ${exact(now - row.since)}, since ${stamp(row.since)} by this computer's clock`}
            />
          </Cell>
          <Cell label="remaining" kind="remaining">
            <Ticking text={(now) => remaining(row.ends, now, old)} exact={(now) => exact(row.ends - now)} />
          </Cell>
          <Cell label="in line" kind="figure">
            {count(row.queueLen)}
          </Cell>
        </Line>
      ))}
    </Table>
  );
}
