// What ended without its owner: by time, or by an operator.

import { Text, Ticking } from '../shared/bits';
import { stamp } from '../shared/clock';
import type { Live } from './live';
import { ago } from '../shared/words';

export function Recent({ live, onOpen }: { live: Live; onOpen: (name: string) => void }) {
  const recent = live.status?.recent ?? [];
  return (
    <section class="recent" aria-labelledby="recent-title">
      <h2 id="recent-title">Recent lapses and revokes</h2>
      {recent.length === 0 ? (
        <p class="quiet">{live.status === null ? '' : 'None since the server started.'}</p>
      ) : (
        <ol class="endings">
          {recent.map((ending) => {
            const at = live.statusAt - ending.ago_ms;
            const name = ending.resources[0] ?? '';
            const others = ending.resources.length - 1;
            return (
              <li key={`${ending.token}/${name}`}>
                <div class="ending-line">
                  <span class={`kind kind-${ending.kind}`}>{ending.kind}</span>
                  <button type="button" class="name" onClick={() => onOpen(name)}>
                    <Text of={name} />
                  </button>
                  {others > 0 && <span class="more">+{others}</span>}
                  <span class="when">
                    <Ticking text={(now) => ago(now - at)} exact={() => `${stamp(at)}, by this computer's clock`} />
                  </span>
                </div>
                <div class="ending-line quiet">
                  <span class="who">
                    <Text of={ending.holder} />
                  </span>
                  {ending.token !== null && <span class="token">token {ending.token}</span>}
                </div>
                {ending.reason !== undefined && ending.reason !== '' && (
                  <div class="reason">
                    <Text of={ending.reason} />
                  </div>
                )}
              </li>
            );
          })}
        </ol>
      )}
    </section>
  );
}
