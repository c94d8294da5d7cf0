import type { TranslationBundle } from '@jupyterlab/translation';
import { downloadIcon, saveIcon } from '@jupyterlab/ui-components';
import * as React from 'react';
import { bytes, csvRows, shortDigest } from '../format';
import { eyeIcon } from '../icons';
import { refusalText, replyText } from '../kerneltexts';
import type { KernelLink } from '../link';
import type { FilePreview, OutputView } from '../protocol';
import { Mark, Section } from './section';

const PREVIEW_BYTES = 256 * 1024;
const PIECE = 1024 * 1024;
const MAX_DOWNLOAD = 256 * 1024 * 1024;
const SAVE_TIMEOUT = 15 * 60_000;

/** Read a whole collected file in pieces. Throws with a sentence when a piece cannot be read. */
export async function readAll(
  link: KernelLink,
  output: OutputView
): Promise<Blob> {
  const parts: Uint8Array[] = [];
  let at = 0;
  const size = output.size ?? 0;
  while (at < size || at === 0) {
    const reply = await link.request(
      {
        action: 'read_output',
        path: output.path,
        offset: at,
        max_bytes: PIECE,
        raw: true
      },
      20_000
    );
    if (!reply.preview || !reply.accepted) {
      throw new Error(reply.message);
    }
    const text = atob(reply.preview.content);
    const piece = Uint8Array.from(text, ch => ch.charCodeAt(0));
    parts.push(piece);
    at += piece.length;
    if (!reply.preview.truncated || piece.length === 0) {
      break;
    }
  }
  // A neutral type: the browser saves the file and never opens it as a page.
  return new Blob(parts as BlobPart[], { type: 'application/octet-stream' });
}

function Preview(props: {
  file: FilePreview;
  trans: TranslationBundle;
}): JSX.Element {
  const { file, trans } = props;
  let body: JSX.Element;
  if (file.media === 'image' && file.encoding === 'base64') {
    body = file.truncated ? (
      <p className="agently-small">
        {trans.__('The image is too large for a preview; download it.')}
      </p>
    ) : (
      <img
        alt={trans.__('Preview of %1', file.path)}
        src={`data:${file.mime};base64,${file.content}`}
      />
    );
  } else if (file.media === 'csv') {
    const separator = file.path.toLowerCase().endsWith('.tsv') ? '\t' : ',';
    const [head, ...rows] = csvRows(file.content, separator, 51, 20);
    body = (
      <table className="agently-table">
        <thead>
          <tr>
            {(head ?? []).map((cell, i) => (
              <th key={i} scope="col">
                {cell}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              {row.map((cell, j) => (
                <td key={j}>{cell}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    );
  } else {
    body = <pre>{file.content}</pre>;
  }
  return (
    <div
      className="agently-Preview"
      tabIndex={0}
      role="region"
      aria-label={trans.__('Preview of %1', file.path)}
    >
      {body}
      {file.truncated && file.media !== 'image' && (
        <p className="agently-small">
          {trans.__('The beginning of %1', bytes(file.size))}
        </p>
      )}
    </div>
  );
}

function OutputRow(props: {
  output: OutputView;
  link: KernelLink;
  trans: TranslationBundle;
}): JSX.Element {
  const { output, link, trans } = props;
  const [file, setFile] = React.useState<FilePreview | null>(null);
  const [note, setNote] = React.useState('');
  const [busy, setBusy] = React.useState(false);

  const guarded = async (work: () => Promise<void>) => {
    setBusy(true);
    setNote('');
    try {
      await work();
    } catch (error) {
      setNote(replyText(trans, error instanceof Error ? error.message : String(error)));
    }
    setBusy(false);
  };
  const preview = () =>
    guarded(async () => {
      if (file) {
        setFile(null);
        return;
      }
      const image = output.media === 'image';
      const reply = await link.request({
        action: 'read_output',
        path: output.path,
        max_bytes: image ? 2 * PIECE : PREVIEW_BYTES
      });
      if (reply.preview) {
        setFile(reply.preview);
      } else {
        setNote(replyText(trans, reply.message));
      }
    });
  const download = () =>
    guarded(async () => {
      if ((output.size ?? 0) > MAX_DOWNLOAD) {
        setNote(
          trans.__('Too large to download through the page; save it instead.')
        );
        return;
      }
      const url = URL.createObjectURL(await readAll(link, output));
      const anchor = document.createElement('a');
      anchor.href = url;
      anchor.download = output.path.split('/').pop() ?? 'output';
      anchor.click();
      window.setTimeout(() => URL.revokeObjectURL(url), 10_000);
    });
  const save = () =>
    guarded(async () => {
      setNote(trans.__('Answer the question about saving, at the top of this panel.'));
      const reply = await link.request(
        { action: 'save_output', path: output.path },
        SAVE_TIMEOUT
      );
      setNote(
        reply.accepted && reply.status === 'ok'
          ? trans.__('Saved as %1', reply.message)
          : replyText(trans, reply.message)
      );
    });

  const collected = output.state === 'collected';
  return (
    <li data-output={output.path}>
      <div className="agently-row">
        <span className="agently-grow agently-path">{output.path}</span>
        {!collected && (
          <span className="agently-word agently-tone-bad">
            <Mark tone="bad" mark="✗" />{' '}
            {output.reason === 'missing'
              ? trans.__('missing')
              : trans.__('refused')}
          </span>
        )}
      </div>
      {collected && (
        <div className="agently-row">
          <span
            className="agently-grow agently-small agently-wrap"
            title={output.sha256 ?? ''}
          >
            {bytes(output.size ?? 0)}
            {output.sha256 && <> · sha256 {shortDigest(output.sha256)}</>}
            {!output.declared && <> · {trans.__('found in the sandbox')}</>}
          </span>
          <span className="agently-icons">
            {output.media !== 'other' && (
              <button
                type="button"
                className="agently-iconbutton"
                aria-expanded={file !== null}
                aria-label={trans.__('Preview %1', output.path)}
                title={trans.__('Preview')}
                disabled={busy}
                onClick={() => void preview()}
              >
                <eyeIcon.react tag="span" />
              </button>
            )}
            <button
              type="button"
              className="agently-iconbutton"
              aria-label={trans.__('Download %1', output.path)}
              title={trans.__('Download')}
              disabled={busy}
              onClick={() => void download()}
            >
              <downloadIcon.react tag="span" />
            </button>
            <button
              type="button"
              className="agently-iconbutton"
              aria-label={trans.__('Save %1 beside the notebook', output.path)}
              title={trans.__('Save beside the notebook')}
              disabled={busy}
              onClick={() => void save()}
            >
              <saveIcon.react tag="span" />
            </button>
          </span>
        </div>
      )}
      {output.message && (
        <div className="agently-small">{refusalText(trans, output.message)}</div>
      )}
      {note && (
        <div className="agently-small" role="status">
          {note}
        </div>
      )}
      {file && <Preview file={file} trans={trans} />}
    </li>
  );
}

/** The files that came out of the sandbox. */
export function Outputs(props: {
  outputs: OutputView[];
  link: KernelLink;
  trans: TranslationBundle;
}): JSX.Element {
  const { outputs, link, trans } = props;
  return (
    <Section
      name="outputs"
      title={trans.__('Output files')}
      count={outputs.length}
    >
      {outputs.length === 0 ? (
        <p className="agently-small">
          {trans.__(
            'Files that a cell writes to output/ are collected here, for example open("output/result.csv", "w"). Those of earlier sessions are kept too: %agently outputs says where.'
          )}
        </p>
      ) : (
        <ul className="agently-list">
          {[...outputs].reverse().map(output => (
            <OutputRow
              key={`${output.path}-${output.sha256 ?? ''}`}
              output={output}
              link={link}
              trans={trans}
            />
          ))}
        </ul>
      )}
    </Section>
  );
}
