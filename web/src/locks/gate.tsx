// Asks for an API key. It stays in this tab (sessionStorage) and is sent as a header, never in an address.

import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { key } from './api';
import type { Live } from './live';

export function Gate({ live }: { live: Live }) {
  const field = useRef<HTMLInputElement>(null);
  // Not by `autofocus`, which browsers heed once: the gate also comes back, after a key that was refused.
  useLayoutEffect(() => field.current?.focus(), []);
  const [value, setValue] = useState('');
  const [wrong, setWrong] = useState<string | null>(null);
  const submit = (event: Event) => {
    event.preventDefault();
    const trimmed = value.trim();
    if (key.usable(trimmed)) live.useKey(trimmed);
    else setWrong(trimmed === '' ? 'Please paste a key.' : 'A key has no spaces and only plain characters.');
  };
  const message = wrong ?? live.error;
  return (
    <main id="main" class="gate" tabIndex={-1}>
      <form onSubmit={submit} autoComplete="off">
        <h2>This server asks for a key</h2>
        <p>
          A key with the role <b>read</b> shows what is held; with <b>admin</b> it can also revoke. An operator makes
          one with <code>leasehold key create --role read</code>.
        </p>
        <label for="key">API key</label>
        <div class="field">
          <input
            id="key"
            ref={field}
            type="password"
            autoComplete="off"
            spellcheck={false}
            value={value}
            aria-describedby="key-note"
            aria-invalid={message !== null}
            onInput={(event) => {
              setValue(event.currentTarget.value);
              setWrong(null);
            }}
          />
          <button type="submit" class="primary">
            Show locks
          </button>
        </div>
        {message !== null && (
          <p class="wrong" role="alert">
            {message}
          </p>
        )}
        <p id="key-note" class="quiet">
          It is kept for this tab only and is gone when the tab is closed.
        </p>
      </form>
    </main>
  );
}
