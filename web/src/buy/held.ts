// The words for a hold on this page.

import type { Alternative, Conflict, HoldState } from '../office/api';

export interface Held {
  hold_id: string;
  state: HoldState;
  seats: string[];
  areas: { id: string; qty: number }[];
  total: number;
  /** Moments of the page's clock. */
  ends: number;
  renewableUntil: number;
  paymentRef: string | null;
  /** The provider's page, where it has one. */
  payUrl: string | null;
  /** Offered for money that came too late: to be taken or not. */
  paid: boolean;
}

export interface Refusal {
  conflicts: Conflict[];
  alternative: Alternative | null;
  /** The hold that it was about stands as before. */
  kept: boolean;
}

export type Wish = { seats?: string[]; areas?: { id: string; qty: number }[]; best?: { qty: number; section?: string; adjacent?: boolean } };
