// Records of the server, field by field. What this page does not know by name is shown as it came.

import type { ComponentChildren } from 'preact';
import { Text } from '../shared/bits';
import { span } from '../shared/words';
import { price } from '../office/money';
import type { Fields } from './desk';
import { sourceOf } from './moneywords';

/** The columns of records, in the order of their first appearance; those that are wanted first, first. */
export function columnsOf(records: Fields[], first: string[]): string[] {
  const all = new Set(records.flatMap((record) => Object.keys(record).filter((name) => record[name] !== null)));
  return [...first.filter((name) => all.has(name)), ...[...all].filter((name) => !first.includes(name))];
}

export const title = (name: string): string => name.replace(/_ms$/, '').replaceAll('_', ' ');

/** Fields that are money, in minor units. */
const money = ['total', 'amount', 'paid', 'sold_for', 'owed'];

export function Value({ name, of, currency }: { name: string; of: unknown; currency: string }) {
  if (of === undefined || of === null) return <>–</>;
  if (typeof of === 'number' && name.endsWith('_ms') && !/(^|_)at_ms$/.test(name)) return <>{span(of, false)}</>;
  if (typeof of === 'number' && money.includes(name)) return <>{price(of, currency)}</>;
  if (typeof of === 'string' && name === 'source') return <>{sourceOf(of)}</>;
  if (Array.isArray(of)) return <Text of={of.map((one) => text(one)).join(', ')} />;
  return <Text of={text(of)} />;
}

function text(of: unknown): string {
  if (typeof of === 'string') return of;
  if (typeof of === 'object' && of !== null && 'id' in of && typeof of.id === 'string') return of.id;
  if (typeof of === 'object' && of !== null && 'state' in of) return [of.state, 'note' in of ? of.note : ''].filter(Boolean).join(': ');
  return typeof of === 'object' ? JSON.stringify(of) : String(of);
}

interface Props {
  records: Fields[];
  first: string[];
  currency: string;
  label: string;
  /** What can be done about a record. */
  acts?: (record: Fields) => ComponentChildren;
}

export function Records({ records, first, currency, label, acts }: Props) {
  const columns = columnsOf(records, first);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            {columns.map((name) => (
              <th scope="col">{title(name)}</th>
            ))}
            {acts !== undefined && <th scope="col">to do</th>}
          </tr>
        </thead>
        <tbody>
          {records.map((record) => (
            <tr>
              {columns.map((name) => (
                <td>
                  <Value name={name} of={record[name]} currency={currency} />
                </td>
              ))}
              {acts !== undefined && <td>{acts(record)}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
