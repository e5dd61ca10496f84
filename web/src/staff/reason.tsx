// Asks for a reason before something is done that others will ask about.

import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { Dialog } from '../shared/bits';
import { sentence } from '../shared/http';

interface Props {
  title: string;
  says: string;
  action: string;
  onClose: () => void;
  /** Throws what the server refused. */
  onDo: (reason: string) => Promise<void>;
  /** What else is asked, before the reason. */
  children?: ComponentChildren;
  /** What is still missing of that, in a sentence. */
  missing?: () => string | null;
}

export function Reason({ title, says, action, onClose, onDo, children, missing }: Props) {
  const [reason, setReason] = useState('');
  const [wrong, setWrong] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (busy) return;
    const lacks = missing?.() ?? (reason.trim() === '' ? 'Please give a reason.' : null);
    if (lacks !== null) {
      setWrong(lacks);
      return;
    }
    setBusy(true);
    try {
      await onDo(reason.trim());
      onClose();
    } catch (error) {
      setWrong(sentence(error));
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={submit}>
        <p>{says}</p>
        {children}
        <label for="reason">Reason, for the record</label>
        <input
          id="reason"
          type="text"
          autoFocus={children === undefined}
          autoComplete="off"
          maxLength={200}
          value={reason}
          aria-invalid={wrong !== null}
          aria-describedby={wrong === null ? undefined : 'reason-wrong'}
          onInput={(event) => {
            setReason(event.currentTarget.value);
            setWrong(null);
          }}
        />
        {wrong !== null && (
          <p id="reason-wrong" class="wrong" role="alert">
            {wrong}
          </p>
        )}
        <div class="actions">
          <button type="button" onClick={onClose}>
            Leave it
          </button>
          <button type="submit" class="danger" aria-disabled={busy}>
            {busy ? 'Asking…' : action}
          </button>
        </div>
      </form>
    </Dialog>
  );
}
