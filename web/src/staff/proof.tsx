// The server proves from its own data that nothing was sold twice.

import { useEffect } from 'preact/hooks';
import { Text } from '../shared/bits';
import type { Desk } from './desk';

export function Proof({ desk }: { desk: Desk }) {
  useEffect(() => void desk.readChecks(), [desk]);
  const { checks } = desk;
  return (
    <>
      <div class="actions">
        <button type="button" onClick={() => void desk.readChecks()}>
          Check again
        </button>
        <span role="status">{checks === null ? '' : checks.ok ? 'All checks hold.' : 'A check failed. Stop the sale and call a person.'}</span>
      </div>
      <ul class="checks">
        {(checks?.checks ?? []).map((check) => (
          <li key={check.name} class={check.ok ? 'ok' : 'bad'}>
            <span aria-hidden="true">{check.ok ? '✓' : '✗'}</span> {check.ok ? 'holds' : 'broken'}: {check.name.replaceAll('_', ' ')}{' '}
            <span class="quiet">
              <Text of={check.detail ?? ''} />
            </span>
          </li>
        ))}
      </ul>
    </>
  );
}
