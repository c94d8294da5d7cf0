import * as React from 'react';

/** A foldable part of the panel. */
export function Section(props: {
  title: string;
  count?: React.ReactNode;
  /** What a screen reader says in place of a count that only the eye understands. */
  spoken?: string;
  open?: boolean;
  name: string;
  children: React.ReactNode;
}): JSX.Element {
  const [open, setOpen] = React.useState(props.open ?? true);
  return (
    <details
      className="agently-Section"
      data-section={props.name}
      open={open}
      onToggle={event => {
        if (event.target === event.currentTarget) {
          setOpen(event.currentTarget.open);
        }
      }}
    >
      <summary>
        <span className="agently-Section-title">{props.title}</span>
        {props.count !== undefined && (
          <span className="agently-count-badge" aria-hidden={!!props.spoken}>
            {props.count}
          </span>
        )}
        {props.spoken && (
          <span className="agently-hidden"> {props.spoken}</span>
        )}
      </summary>
      <div className="agently-Section-body">{props.children}</div>
    </details>
  );
}

/** A mark whose meaning is also in a word beside it. */
export function Mark(props: { tone: string; mark: string }): JSX.Element {
  return (
    <span className={`agently-mark agently-tone-${props.tone}`} aria-hidden>
      {props.mark}
    </span>
  );
}
