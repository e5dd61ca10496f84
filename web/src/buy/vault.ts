// What this browser remembers of one event: the hold, the call that has no answer yet, the last order.
//
// In localStorage, so that reload, Back and a second tab are the same buyer with the same hold and the same clock.
// The hold's key is a secret, and is kept there for that reason: whoever can read this origin's store can act as
// this page anyway, and without it a reload would lose the seats. It is never in an address. It goes with its hold.

export interface Kept {
  hold_id: string;
  hold_key: string;
  /** Of money that came too late: what the offered seats are confirmed with. */
  payment_ref?: string;
  /** The payment that the buyer cancelled, so that every tab says so. */
  cancelled?: string;
  /** It is paid already: seats that are offered for money that came too late. */
  paid?: boolean;
}

/** A call that was begun. Kept before it is sent: told again with the same key, it is done once. */
export interface Pending {
  kind: Kind;
  path: string;
  body: unknown;
  idem: string;
}

export type Kind = 'hold' | 'change' | 'renew' | 'release' | 'pay' | 'cancel' | 'confirm' | 'demo';

export interface Bought {
  order_id: string | null;
  seats: string[];
  areas: { id: string; qty: number }[];
  total: number;
}

type Slot = 'hold' | 'pending' | 'order' | 'late';

export class Vault {
  private readonly channel = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel('leasehold');

  constructor(private readonly event: string) {}

  private item(slot: Slot): string {
    return `leasehold.${slot}.${this.event}`;
  }

  private read<T>(slot: Slot): T | null {
    try {
      return JSON.parse(localStorage.getItem(this.item(slot)) ?? 'null') as T | null;
    } catch {
      return null;
    }
  }

  private write(slot: Slot, value: unknown): void {
    if (value === null) localStorage.removeItem(this.item(slot));
    else localStorage.setItem(this.item(slot), JSON.stringify(value));
  }

  get hold(): Kept | null {
    return this.read('hold');
  }
  set hold(value: Kept | null) {
    this.write('hold', value);
  }

  get pending(): Pending | null {
    return this.read('pending');
  }
  set pending(value: Pending | null) {
    this.write('pending', value);
  }

  /** A hold whose time to pay is over, while money may still come for it. */
  get late(): Kept | null {
    return this.read('late');
  }
  set late(value: Kept | null) {
    this.write('late', value);
  }

  get order(): Bought | null {
    return this.read('order');
  }
  set order(value: Bought | null) {
    this.write('order', value);
  }

  /** Tells the other tabs that the hold changed, also where what is stored did not: a renewal. */
  tell(): void {
    this.channel?.postMessage(this.event);
  }

  /** Calls when another tab changed something. */
  onOther(run: () => void): void {
    window.addEventListener('storage', (event) => {
      if (event.key === null || event.key === this.item('hold') || event.key === this.item('order')) run();
    });
    this.channel?.addEventListener('message', (event) => event.data === this.event && run());
  }
}
