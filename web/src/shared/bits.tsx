// Small parts that several views use.

import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { everyTick, now } from './clock';
import { ahead, lines, parts, plain, utc } from './words';

/** A stranger's text: never markup, isolated from the direction of its surroundings, nothing hidden in it. */
export function Text({ of, titled = true }: { of: string; titled?: boolean }) {
  const title = titled ? { title: plain(of) } : {};
  if (of === '') return <span class="none">(no label)</span>;
  return (
    <bdi class="text" {...title}>
      {parts(of).map((part) => (part.code ? <span class="code">{part.text}</span> : part.text))}
    </bdi>
  );
}

/** Several lines of a stranger's text: output, an error, a body. What may be long scrolls, and takes the focus for it. */
export function Block({ of, label, scrolls = false }: { of: string; label: string; scrolls?: boolean }) {
  return (
    <pre class={`block${scrolls ? ' scrolls' : ''}`} tabIndex={scrolls ? 0 : undefined} role="group" aria-label={label}>
      {lines(of).map((part) => (part.code ? <span class="code">{part.text}</span> : part.text))}
    </pre>
  );
}

/** A moment to come, in words; the instant itself is in the title. */
export function Until({ moment, instant }: { moment: number; instant: string }) {
  return (
    <time dateTime={instant} title={utc(instant)}>
      <Ticking text={(now) => ahead(moment - now)} />
    </time>
  );
}

/** Text that changes with time. Written past preact: forty countdowns are no reason to render. */
export function Ticking({ text, exact }: { text: (now: number) => string; exact?: (now: number) => string }) {
  const element = useRef<HTMLSpanElement>(null);
  const latest = useRef(text);
  latest.current = text;
  const write = (moment: number) => {
    const span = element.current;
    const said = latest.current(moment);
    if (span !== null && span.textContent !== said) span.textContent = said;
  };
  useLayoutEffect(() => write(now()));
  useEffect(() => everyTick(write), []);
  const title = exact === undefined ? {} : { onPointerEnter: () => element.current?.setAttribute('title', exact(now())) };
  return <span class="ticking" ref={element} {...title} />;
}

export function Copyable({ label, text }: { label: string; text: string }) {
  const [copied, setCopied] = useState(false);
  const code = useRef<HTMLElement>(null);
  const copy = async () => {
    setCopied(await toClipboard(text, code.current));
    window.setTimeout(() => setCopied(false), 2000);
  };
  return (
    <div class="copyable">
      <h3>{label}</h3>
      <pre tabIndex={0} aria-label={`Command for ${label}`}>
        <code ref={code}>{text}</code>
      </pre>
      <button type="button" onClick={copy} aria-label={`Copy the command for ${label}`}>
        {copied ? 'Copied' : 'Copy'}
      </button>
    </div>
  );
}

/** The clipboard is only given to secure pages; elsewhere the text is selected, ready for Ctrl-C. */
async function toClipboard(text: string, shown: HTMLElement | null): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    if (shown !== null) window.getSelection()?.selectAllChildren(shown);
    return document.execCommand('copy');
  }
}

/**
 * A modal dialog of the browser's own: it keeps the focus, closes with Esc, and gives the focus back.
 *
 * Closed before it leaves the document: while it is open all else is inert and takes no focus, and a dialog that is
 * merely taken away gives none back.
 */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const leaving = useRef(false);
  useLayoutEffect(() => {
    const element = dialog.current;
    element?.showModal();
    return () => {
      leaving.current = true;
      element?.close();
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      aria-labelledby="dialog-title"
      onClose={() => {
        if (!leaving.current) props.onClose();
      }}
    >
      <h2 id="dialog-title">{props.title}</h2>
      {props.children}
    </dialog>
  );
}

export function useMedia(query: string): boolean {
  const [matches, setMatches] = useState(() => window.matchMedia(query).matches);
  useEffect(() => {
    const media = window.matchMedia(query);
    const update = () => setMatches(media.matches);
    update();
    media.addEventListener('change', update);
    return () => media.removeEventListener('change', update);
  }, [query]);
  return matches;
}
