// Money and orders in plain words, for staff. A word that is new to this page is shown as the server says it.

import type { Capture, Order } from '../office/api';
import { price } from '../office/money';

const moneyStates: Record<string, string> = {
  received: 'came, nothing decided yet',
  sold: 'bought its seats late',
  offered: 'other seats are offered for it',
  refund_due: 'must go back',
  refunded: 'went back',
  stuck: 'stuck: staff decides',
  closed: 'settled by hand',
  cancel_due: 'authorised, to be cancelled',
  cancelled: 'cancelled, no money moved',
};

const kinds: Record<string, string> = {
  late_money: 'money came late',
  refund_due: 'money must go back',
  refunded: 'money went back',
  stuck_money: 'money is stuck: staff decides',
  money_closed: 'money settled by hand',
  cancel_due: 'authorised payment to be cancelled',
  cancelled: 'payment cancelled, no money moved',
  captured: 'payment captured after the sale',
  capture_failed: 'capture refused: staff decides',
};

const captures: Record<Capture['state'], string> = {
  due: 'authorised, to be captured',
  captured: 'captured',
  failed: 'refused by the provider: staff decides',
  cancelled: 'not wanted any more, no money moved',
};

const sources: Record<string, string> = { provider: 'the payment provider', key: 'somebody with a key' };

const spaced = (word: string): string => word.replaceAll('_', ' ');

export const moneyState = (state: unknown): string => moneyStates[String(state)] ?? spaced(String(state));
export const kindOf = (kind: string): string => kinds[kind] ?? spaced(kind);
export const sourceOf = (source: string): string => sources[source] ?? spaced(source);
export const captureOf = ({ state, amount }: Capture, currency: string): string =>
  `${captures[state] ?? spaced(String(state))}, ${price(amount, currency)}`;

/** Money of an order that is not taken: still to be captured, or refused. */
export const uncaptured = (order: Pick<Order, 'capture'>): boolean =>
  order.capture?.state === 'due' || order.capture?.state === 'failed';
