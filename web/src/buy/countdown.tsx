// How long the hold lasts, large. It is not announced but at a few moments; the server decides when it is over.

import { useEffect, useRef, useState } from 'preact/hooks';
import { Ticking } from '../shared/bits';
import { everyTick } from '../shared/clock';
import { span } from '../shared/words';
import type { Basket } from './basket';
import type { Held } from './held';
import { clockFace, passed } from './marks';

export function Countdown({ basket, held }: { basket: Basket; held: Held }) {
  const [said, say] = useState('');
  const [low, setLow] = useState(false);
  const latest = useRef(held);
  latest.current = held;
  useEffect(() => {
    let before: number | null = null;
    return everyTick((moment) => {
      const left = latest.current.ends - moment;
      const words = passed(before, left);
      if (words !== null) say(words);
      setLow(left <= 60_000);
      before = left;
    });
  }, []);
  const paying = held.state === 'paying' && !held.paid;
  const fixed = paying || held.paid;
  // Renewing helps while the end can still move.
  const room = held.renewableUntil - held.ends > 1000;
  return (
    <div class={`countdown${low ? ' low' : ''}`}>
      <div class="face" role="timer" aria-live="off" aria-label={paying ? 'Time left to pay' : 'Time left'}>
        <Ticking text={(moment) => clockFace(held.ends - moment)} />
      </div>
      <p class="quiet">
        <Ticking text={(moment) => under(held, moment, paying)} />
      </p>
      {!fixed && (
        <div class="actions">
          <button type="button" aria-disabled={!room || basket.busy !== null} onClick={() => room && void basket.renew()}>
            {basket.busy === 'renew' ? 'Asking…' : 'More time'}
          </button>
          <span class="quiet">
            {room ? <Ticking text={(moment) => `up to ${span(held.renewableUntil - moment, false)} from now`} /> : 'as long as it can be'}
          </span>
        </div>
      )}
      <div class="hidden" role="status">
        {said}
      </div>
    </div>
  );
}

function under(held: Held, moment: number, paying: boolean): string {
  if (held.ends <= moment) return 'Asking the server whether the time is over.';
  if (held.paid) return 'to take them; after that your money goes back';
  return paying ? 'to pay; the seats cannot lapse before that' : 'until the seats are free for others';
}
