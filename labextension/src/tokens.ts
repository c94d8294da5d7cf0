import type { NotebookPanel } from '@jupyterlab/notebook';
import { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';
import type { KernelLink } from './link';
import type { ApprovalView } from './protocol';

/** A question and the notebook whose kernel asks it. */
export interface IWaiting {
  notebook: NotebookPanel;
  link: KernelLink;
  approval: ApprovalView;
}

/** What the user chose in the settings editor. */
export interface IPanelOptions {
  notifyInBackground: 'off' | 'toast';
  openPanelOnApproval: boolean;
  cellBadges: 'all' | 'problems' | 'none';
  showForeignKernels: boolean;
  timelineLimit: number;
  panelSide: 'left' | 'right';
  /** Wishes that a kernel takes only where they are stricter than its configuration. */
  isolation: 'configured' | 'preferred' | 'required';
  /** Seconds; 0 is as configured. */
  approvalTimeout: number;
}

/** All open notebooks and the links to their kernels. */
export interface ISandboxSessions {
  /** The notebook in front and its link. */
  readonly current: { notebook: NotebookPanel; link: KernelLink } | null;
  /** Emitted when another notebook comes to the front, or anything of any link changes. */
  readonly changed: ISignal<ISandboxSessions, void>;
  /** Every open question, the notebook in front first. */
  waiting(): IWaiting[];
  /** The link of a notebook. */
  link(notebook: NotebookPanel): KernelLink | undefined;
  /** Emitted once for every notebook, also for those opened later. */
  readonly opened: ISignal<
    ISandboxSessions,
    { notebook: NotebookPanel; link: KernelLink }
  >;
  /** Every open notebook with its link. */
  all(): { notebook: NotebookPanel; link: KernelLink }[];
  /** Whether the side panel is in view, so that it shows the notebook in front's questions itself. */
  panelVisible: boolean;
  options: IPanelOptions;
}

export const ISandboxSessions = new Token<ISandboxSessions>(
  'agently-kernel-panel:ISandboxSessions',
  'Links between open notebooks and their sandboxed kernels.'
);
