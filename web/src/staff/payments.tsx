// Money that came after its time, and money that neither came nor was refused.

import type { Desk } from './desk';
import { Records } from './fields';

const first = ['hold_id', 'buyer', 'payment_ref', 'seats', 'state', 'resolution', 'total', 'amount', 'age_ms'];

export function Payments({ desk }: { desk: Desk }) {
  const currency = desk.settings?.currency ?? '';
  const { report } = desk;
  if (report === null) return <p class="quiet">Asking the server…</p>;
  const late = report.late_payments ?? [];
  const stuck = report.stuck_payments ?? [];
  return (
    <>
      <h2>Late payments</h2>
      {late.length === 0 ? <p class="quiet">None.</p> : <Records records={late} first={first} currency={currency} label="Late payments" />}
      <h2>Stuck payments</h2>
      {stuck.length === 0 ? <p class="quiet">None.</p> : <Records records={stuck} first={first} currency={currency} label="Stuck payments" />}
    </>
  );
}
