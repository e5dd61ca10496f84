// The hall seen from above. One stop for Tab; arrows lead from seat to seat, Home and End to the ends of a row.

import { useRef, useState } from 'preact/hooks';
import { beside, type Hall } from './hall';
import type { Shown } from './labels';
import { amount } from './money';
import { SeatButton } from './seat';

export interface Look {
  hall: Hall;
  currency: string;
  shownAs: (id: string) => Shown;
  word: (id: string) => string;
  /** undefined: not to be picked. */
  pressed: (id: string) => boolean | undefined;
  marked?: (id: string) => boolean;
  inside?: (id: string) => string | undefined;
  onPick: (id: string, event: MouseEvent | KeyboardEvent) => void;
}

const sizes = [26, 34, 44, 56];

export function SeatMap(props: Look) {
  const { hall } = props;
  const [at, setAt] = useState<string | null>(null);
  const [zoom, setZoom] = useState(1);
  const field = useRef<HTMLDivElement>(null);
  const reached = at !== null && hall.seats.has(at) ? at : hall.rows[0]?.[0]?.id;
  const go = (id: string) => {
    setAt(id);
    seatElement(field.current, id)?.focus();
  };
  const pressed = (event: KeyboardEvent) => {
    const from = event.target instanceof Element ? event.target.getAttribute('data-seat') : null;
    if (from === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const to = beside(hall, from, event.key);
    if (to === undefined) return;
    event.preventDefault();
    go(to);
    if (event.shiftKey) props.onPick(to, event);
  };
  return (
    <div class="map">
      <div class="zoom" role="group" aria-label="Size of the map">
        <button type="button" class="square" aria-label="Smaller" aria-disabled={zoom === 0} onClick={() => setZoom(Math.max(0, zoom - 1))}>
          −
        </button>
        <button
          type="button"
          class="square"
          aria-label="Larger"
          aria-disabled={zoom === sizes.length - 1}
          onClick={() => setZoom(Math.min(sizes.length - 1, zoom + 1))}
        >
          +
        </button>
        <span class="quiet">Arrow keys move from seat to seat, Space picks.</span>
      </div>
      <div class="ground" style={{ '--u': `${sizes[zoom] ?? 34}px`, '--w': String(hall.width), '--h': String(hall.height) }}>
        <div class="hall" ref={field} role="group" aria-label="Map of the hall" onKeyDown={pressed}>
          <div class="stage" aria-hidden="true">
            Stage
          </div>
          {hall.labels.map(({ text, prices, x, y }) => (
            <span class="section-name" aria-hidden="true" style={{ '--x': String(x), '--y': String(y) }}>
              {text} · {prices.map((price) => amount(price, props.currency)).join(' to ')}
            </span>
          ))}
          {hall.sections.map((section) => (
            <div role="group" class="section" aria-label={`Section ${section.name}`}>
              {section.rows.map((row) => (
                <>
                  {row.seats[0] !== undefined && (
                    <span
                      class="row-name"
                      aria-hidden="true"
                      style={{ '--x': String(row.seats[0].x - 1), '--y': String(row.seats[0].y) }}
                    >
                      {row.id}
                    </span>
                  )}
                  {row.seats.map((seat) => (
                    <SeatButton
                      key={seat.id}
                      seat={seat}
                      currency={props.currency}
                      shown={props.shownAs(seat.id)}
                      word={props.word(seat.id)}
                      pressed={props.pressed(seat.id)}
                      marked={props.marked?.(seat.id) ?? false}
                      inside={props.inside?.(seat.id)}
                      reached={seat.id === reached}
                      onPick={(id, event) => {
                        setAt(id);
                        props.onPick(id, event);
                      }}
                    />
                  ))}
                </>
              ))}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}

function seatElement(within: HTMLElement | null, id: string): HTMLElement | null {
  return within?.querySelector<HTMLElement>(`[data-seat="${CSS.escape(id)}"]`) ?? null;
}
