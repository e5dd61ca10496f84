// Asks before a revoke, says what will happen, wants a reason, shows what the server answered.

import { useState } from 'preact/hooks';
import { addressable, type Resource } from './api';
import { Dialog, Text } from '../shared/bits';
import { sentence } from '../shared/http';
import type { Live } from './live';
import { counted } from '../shared/words';

/** The server's limit, in bytes of UTF-8. */
const longest = 256;

interface Props {
  live: Live;
  name: string;
  resource: Resource | null;
  onClose: () => void;
  onDone: (message: string) => void;
}

export function Revoke({ live, name, resource, onClose, onDone }: Props) {
  const [reason, setReason] = useState('');
  const [wrong, setWrong] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    const lacking = lack(name, reason);
    setWrong(lacking);
    if (lacking !== null || busy) return;
    setBusy(true);
    try {
      const ended = await live.revoke(name, reason.trim());
      onDone(ended === 0 ? 'Nobody held it any more: nothing was revoked.' : `Revoked ${counted(ended, 'lease')}.`);
    } catch (error) {
      setWrong(sentence(error));
      setBusy(false);
    }
  };
  return (
    <Dialog title="Revoke" onClose={onClose}>
      <form onSubmit={submit}>
        <p class="what">
          <Text of={name} titled={false} />
        </p>
        <Consequences resource={resource} />
        <label for="reason">Reason, for the record and for everybody who watches</label>
        <input
          id="reason"
          type="text"
          autoFocus
          autoComplete="off"
          value={reason}
          aria-invalid={wrong !== null}
          aria-describedby={wrong === null ? undefined : 'revoke-wrong'}
          onInput={(event) => {
            setReason(event.currentTarget.value);
            setWrong(null);
          }}
        />
        {wrong !== null && (
          <p id="revoke-wrong" class="wrong" role="alert">
            {wrong}
          </p>
        )}
        <div class="actions">
          <button type="button" onClick={onClose}>
            Keep it
          </button>
          <button type="submit" class="danger" aria-disabled={busy}>
            {busy ? 'Revoking…' : 'Revoke now'}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function lack(name: string, reason: string): string | null {
  if (!addressable(name)) return `A browser cannot address this name. Use: leasehold revoke ${name} --reason TEXT`;
  if (reason.trim() === '') return 'Please give a reason.';
  if (new TextEncoder().encode(reason.trim()).length > longest) return `A reason has at most ${longest} bytes.`;
  return null;
}

function Consequences({ resource }: { resource: Resource | null }) {
  const first = resource?.holders[0];
  const total = resource?.holdersTotal ?? 0;
  const next = resource?.waiters[0];
  return (
    <ul class="consequences">
      <li>
        {total === 0 && 'Nobody holds it at the moment.'}
        {first !== undefined && total === 1 && (
          <>
            The lease of <Text of={first.holder} />
            {first.token !== null && <> (token {first.token})</>} ends at once, on every resource it covers.
          </>
        )}
        {total > 1 && <>All {counted(total, 'lease')} on it end at once, on every resource they cover.</>}
      </li>
      <li>
        The holder is not stopped: it learns of it at its next renewal. Only a resource that checks tokens refuses what
        it still writes.
      </li>
      <li>
        {next === undefined ? (
          'Nobody waits: the resource becomes free.'
        ) : (
          <>
            <Text of={next.holder} /> is next in line and may be granted it at once.
          </>
        )}
      </li>
    </ul>
  );
}
