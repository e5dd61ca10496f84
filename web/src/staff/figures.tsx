// The figures of the event: seats by state, money that is late or stuck, how often buyers collide, the sweeper's lag.

import { count, span } from '../shared/words';
import type { Desk } from './desk';
import { uncaptured } from './moneywords';

export function Figures({ desk }: { desk: Desk }) {
  const totals = desk.feed === null || desk.hall === null ? null : desk.feed.seats.count(desk.hall.seats.keys());
  const { report } = desk;
  const lag = report?.sweeper_lag_ms;
  const late = report?.late_payments?.filter(({ state }) => !over.includes(String(state))).length ?? 0;
  const failed = (Array.isArray(report?.orders) ? report.orders : []).filter((order) => uncaptured(order) && order.capture?.state === 'failed').length;
  const figures: [string, string | undefined, boolean][] = [
    ['seats', totals === null ? undefined : count(totals.seats), false],
    ['free', totals === null ? undefined : count(totals.free), false],
    ['held', totals === null ? undefined : count(totals.held), false],
    ['paying', totals === null ? undefined : count(totals.paying), false],
    ['sold', totals === null ? undefined : count(totals.sold), false],
    ['blocked', totals === null ? undefined : count(totals.blocked), false],
    ['conflict rate', rate(report?.conflict_rate), false],
    ['sweeper lag', lag === undefined || lag === null ? undefined : span(lag), (lag ?? 0) > 60_000],
    ['late payments', report?.late_payments && count(late), late > 0],
    ['stuck payments', report?.stuck_payments && count(report.stuck_payments.length), (report?.stuck_payments?.length ?? 0) > 0],
  ];
  // Rare, and then staff must act.
  if (failed > 0) figures.push(['failed captures', count(failed), true]);
  return (
    <dl class="numbers">
      {figures.map(([name, value, bad]) => (
        <div class={bad ? 'bad' : ''}>
          <dt>{name}</dt>
          <dd>{value ?? '–'}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Nobody waits for money in these states. */
const over = ['sold', 'refunded', 'closed', 'cancelled'];

/** A share of all attempts to hold. */
const rate = (share: number | undefined): string | undefined =>
  share === undefined || share === null ? undefined : `${(share * 100).toFixed(1)} %`;
