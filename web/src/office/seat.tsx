// One seat: a real button with its whole name, in the map and in the list.

import { Component } from 'preact';
import { Glyph } from './glyphs';
import type { Placed } from './hall';
import { full, type Shown } from './labels';
import { amount } from './money';

export interface SeatProps {
  seat: Placed;
  shown: Shown;
  word: string;
  currency: string;
  /** Of several seats, one is reached by Tab; arrows lead to the others. */
  reached: boolean;
  /** undefined: it cannot be picked, and says why in its name. */
  pressed: boolean | undefined;
  /** Staff: marked for what is done next. */
  marked?: boolean;
  /** Staff: shown in the map instead of the number, such as the age of a hold. */
  inside?: string | undefined;
  /** In the list, with its price beside it. */
  wide?: boolean;
  onPick: (id: string, event: MouseEvent) => void;
}

/** A class, for `shouldComponentUpdate`: news of one seat must not draw four hundred. */
export class SeatButton extends Component<SeatProps> {
  override shouldComponentUpdate(next: SeatProps): boolean {
    const keys = ['seat', 'shown', 'word', 'currency', 'reached', 'pressed', 'marked', 'inside', 'wide'] as const;
    return keys.some((key) => next[key] !== this.props[key]);
  }

  render({ seat, shown, word, currency, reached, pressed, marked, inside, wide }: SeatProps) {
    const where = wide ? {} : { style: { '--x': String(seat.x), '--y': String(seat.y) } };
    const label = full(seat, currency, word) + (marked ? ', marked' : '');
    return (
      <button
        type="button"
        id={`seat-${seat.id}`}
        data-seat={seat.id}
        class={`seat s-${shown}${wide ? ' wide' : ''}${marked ? ' marked' : ''}`}
        aria-label={label}
        aria-pressed={pressed}
        aria-disabled={pressed === undefined}
        title={label}
        tabIndex={reached ? 0 : -1}
        // By the newest props: they change without a new drawing.
        onClick={(event) => this.props.onPick(seat.id, event)}
        {...where}
      >
        <Glyph of={shown} />
        {wide ? (
          // Word for word the end of the label: who speaks to the computer says what is seen.
          <span class="rest">
            <b>seat {seat.number}</b>, {amount(seat.price, currency)}, {word}
          </span>
        ) : (
          <span class="number" aria-hidden="true">
            {inside ?? seat.number}
          </span>
        )}
      </button>
    );
  }
}
