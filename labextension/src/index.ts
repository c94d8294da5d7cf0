import {
  ILabShell,
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import {
  Clipboard,
  Dialog,
  ICommandPalette,
  IToolbarWidgetRegistry,
  Notification,
  SessionContextDialogs,
  showDialog
} from '@jupyterlab/apputils';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { Widget } from '@lumino/widgets';
import { paintBadges } from './badges';
import { FrameFocus } from './framefocus';
import { FrameHeights } from './frames';
import { InputBoxes } from './inputboxes';
import { replyText } from './kerneltexts';
import { Notices } from './notices';
import { DEFAULT_OPTIONS, SandboxSessions } from './sessions';
import type { KernelLink } from './link';
import { ShieldWidget } from './status';
import { IPanelOptions, ISandboxSessions, IWaiting } from './tokens';
import { BannerWidget, PANEL_ID, PanelWidget } from './widgets';

const DOMAIN = 'agently_kernel_panel';

export namespace CommandIDs {
  export const open = 'agently:open-panel';
  export const review = 'agently:review-approval';
  export const restart = 'agently:restart-sandbox';
  export const doctor = 'agently:doctor';
  export const copy = 'agently:copy-facts';
}

const sessions: JupyterFrontEndPlugin<ISandboxSessions> = {
  id: 'agently-kernel-panel:sessions',
  description: 'Links open notebooks to their sandboxed kernels.',
  autoStart: true,
  provides: ISandboxSessions,
  requires: [INotebookTracker],
  activate: (_: JupyterFrontEnd, tracker: INotebookTracker) =>
    new SandboxSessions(tracker)
};

const frames: JupyterFrontEndPlugin<void> = {
  id: 'agently-kernel-panel:frames',
  description:
    'Gives the frames of active output the height that they report, and no focus that they take.',
  autoStart: true,
  optional: [ITranslator],
  activate: (_: JupyterFrontEnd, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    new FrameFocus(
      trans.__(
        'This output was stopped because it kept taking the keyboard focus. Run the cell again to see it.'
      )
    );
    const heights = new FrameHeights();
    window.addEventListener('message', event => heights.take(event));
  }
};

const panel: JupyterFrontEndPlugin<void> = {
  id: 'agently-kernel-panel:panel',
  description:
    'The sandbox panel: facts, outputs, approvals; its commands and settings.',
  autoStart: true,
  requires: [ISandboxSessions],
  optional: [
    ITranslator,
    ICommandPalette,
    ISettingRegistry,
    ILabShell,
    ILayoutRestorer
  ],
  activate: (
    app: JupyterFrontEnd,
    model: ISandboxSessions,
    translator: ITranslator | null,
    palette: ICommandPalette | null,
    registry: ISettingRegistry | null,
    labShell: ILabShell | null,
    restorer: ILayoutRestorer | null
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const { commands, shell } = app;
    const dialogs = new SessionContextDialogs({
      translator: translator ?? undefined
    });
    const run = (command: string) => void commands.execute(command);
    const widget = new PanelWidget(model, trans, {
      changeKernel: notebook =>
        void dialogs.selectKernel(notebook.sessionContext),
      restartSandbox: () => run(CommandIDs.restart),
      doctor: () => run(CommandIDs.doctor),
      copyFacts: () => run(CommandIDs.copy),
      takeBack: (link, id) => void takeBack(link, id),
      focusNotebook: notebook => notebook.content.activate()
    });
    shell.add(widget, 'right', { rank: 650, type: 'Sandbox' });
    restorer?.add(widget, PANEL_ID);

    const linked = () => model.current?.link.state === 'linked';
    commands.addCommand(CommandIDs.open, {
      label: trans.__('Show the Sandbox Panel'),
      describedBy: { args: {} },
      execute: () => shell.activateById(PANEL_ID)
    });
    commands.addCommand(CommandIDs.review, {
      label: trans.__('Go to the Waiting Approval'),
      describedBy: { args: {} },
      isEnabled: () => model.waiting().length > 0,
      execute: () => review(model.waiting()[0])
    });
    commands.addCommand(CommandIDs.restart, {
      label: trans.__('Restart the Sandbox'),
      describedBy: { args: {} },
      isEnabled: linked,
      execute: async () => {
        const link = model.current?.link;
        const sure = await showDialog({
          title: trans.__('Restart the sandbox?'),
          body: trans.__(
            'All variables of this notebook are lost. Collected output files are kept.'
          ),
          buttons: [
            Dialog.cancelButton({ label: trans.__('Cancel') }),
            Dialog.warnButton({ label: trans.__('Restart') })
          ],
          defaultButton: 0
        });
        if (link && sure.button.accept) {
          await tell(() => link.request({ action: 'restart_sandbox' }, 30_000));
          await link.refresh();
        }
      }
    });
    commands.addCommand(CommandIDs.doctor, {
      label: trans.__('Examine Every Sandbox Provider (Doctor)'),
      describedBy: { args: {} },
      isEnabled: linked,
      execute: async () => {
        const link = model.current?.link;
        if (!link) {
          return;
        }
        const waiting = Notification.emit(
          trans.__('The doctor examines every provider…'),
          'in-progress',
          { autoClose: false }
        );
        try {
          const reply = await link.request({ action: 'doctor' }, 120_000);
          const body = new Widget();
          const text = document.createElement('pre');
          text.className = 'agently-Doctor';
          text.tabIndex = 0;
          text.textContent = reply.doctor?.text ?? replyText(trans, reply.message);
          body.node.appendChild(text);
          void showDialog({
            title: trans.__('Sandbox doctor'),
            body,
            buttons: [Dialog.okButton({ label: trans.__('Close') })]
          });
        } catch {
          Notification.error(trans.__('The kernel did not answer.'));
        } finally {
          Notification.dismiss(waiting);
        }
      }
    });
    commands.addCommand(CommandIDs.copy, {
      label: trans.__('Copy Sandbox Facts as JSON'),
      describedBy: { args: {} },
      isEnabled: () => !!model.current?.link.snapshot,
      execute: () => {
        const facts = model.current?.link.snapshot;
        if (facts) {
          const { session, policy, sandbox, selection } = facts;
          Clipboard.copyToSystem(
            JSON.stringify({ session, policy, sandbox, selection }, null, 2)
          );
          Notification.success(trans.__('Facts copied.'), { autoClose: 2000 });
        }
      }
    });
    for (const command of Object.values(CommandIDs)) {
      palette?.addItem({ command, category: trans.__('Sandbox') });
    }

    /** Take something back and say what that came to; what only a restart ends has the restart beside it. */
    async function takeBack(link: KernelLink, id: string): Promise<void> {
      try {
        const reply = await link.request(
          { action: 'revoke', grant_id: id },
          30_000
        );
        if (!reply.accepted) {
          Notification.error(replyText(trans, reply.message));
        } else if (reply.message.includes('restart the sandbox')) {
          Notification.warning(replyText(trans, reply.message), {
            autoClose: false,
            actions: [
              {
                label: trans.__('Restart the Sandbox'),
                callback: () => run(CommandIDs.restart)
              }
            ]
          });
        } else {
          Notification.success(replyText(trans, reply.message), { autoClose: 8000 });
        }
      } catch {
        Notification.error(
          trans.__('The kernel did not answer. It may still hold.')
        );
      }
      await link.refresh();
    }

    /** Show the message of a reply, good or bad. */
    async function tell(
      ask: () => Promise<{ accepted: boolean; message: string }>
    ): Promise<void> {
      try {
        const reply = await ask();
        if (!reply.accepted) {
          Notification.error(replyText(trans, reply.message));
        } else if (reply.message) {
          Notification.success(replyText(trans, reply.message), { autoClose: 5000 });
        }
      } catch {
        Notification.error(trans.__('The kernel did not answer.'));
      }
    }

    /** Bring a question into view and put the focus on its card, never on a button. */
    function review(item: IWaiting | undefined): void {
      if (!item) {
        return;
      }
      shell.activateById(item.notebook.id);
      shell.activateById(PANEL_ID);
      window.setTimeout(() => {
        const selector = `.agently-Card[data-request="${CSS.escape(item.approval.request_id)}"]`;
        document.querySelector<HTMLElement>(selector)?.focus();
      }, 250);
    }

    const banners = new Map<NotebookPanel, BannerWidget>();
    const addBanner = (notebook: NotebookPanel) => {
      const link = model.link(notebook);
      if (link && !banners.has(notebook)) {
        const banner = new BannerWidget(model, trans, notebook, link);
        banner.hide();
        notebook.contentHeader.addWidget(banner);
        banners.set(notebook, banner);
        notebook.disposed.connect(() => banners.delete(notebook));
      }
    };
    model.opened.connect((_, { notebook }) => addBanner(notebook));
    model.all().forEach(({ notebook }) => addBanner(notebook));

    const boxes = new WeakMap<KernelLink, InputBoxes>();
    const update = () => {
      for (const { notebook, link } of model.all()) {
        const asked = boxes.get(link) ?? new InputBoxes(trans);
        boxes.set(link, asked);
        if (link.state === 'linked') {
          asked.follow(notebook.content.node, link.approvals);
        }
        paintBadges(notebook, link, model.options.cellBadges, trans);
        banners.get(notebook)?.follow();
      }
      const waiting = model.waiting().length;
      widget.title.className = waiting > 0 ? 'agently-mod-waiting' : '';
      widget.title.caption =
        waiting > 0
          ? trans._n('%1 approval waiting', '%1 approvals waiting', waiting)
          : trans.__('Sandbox');
      commands.notifyCommandChanged();
    };
    model.changed.connect(update);
    const notices = new Notices(model, trans, review, () => {
      if (model.options.openPanelOnApproval) {
        shell.activateById(PANEL_ID);
      }
    });

    if (registry) {
      void registry.load(panel.id).then(settings => {
        const read = () => {
          const chosen = settings.composite as unknown as Partial<IPanelOptions>;
          const side = model.options.panelSide;
          model.options = { ...DEFAULT_OPTIONS, ...chosen };
          if (labShell && model.options.panelSide !== side) {
            shell.add(widget, model.options.panelSide, { rank: 650 });
          }
        };
        read();
        settings.changed.connect(() => {
          notices.tellRefusals();
          read();
        });
      });
    }
  }
};

const status: JupyterFrontEndPlugin<void> = {
  id: 'agently-kernel-panel:status',
  description: 'The shield in the status bar.',
  autoStart: true,
  requires: [ISandboxSessions],
  optional: [IStatusBar, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: ISandboxSessions,
    statusBar: IStatusBar | null,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    const open = () =>
      void app.commands.execute(
        model.waiting().length > 0 ? CommandIDs.review : CommandIDs.open
      );
    statusBar?.registerStatusItem('agently-kernel-panel:shield', {
      item: new ShieldWidget(model, trans, open),
      align: 'left',
      rank: 3
    });
  }
};

const toolbar: JupyterFrontEndPlugin<void> = {
  id: 'agently-kernel-panel:toolbar',
  description: 'The shield in the toolbar of every notebook.',
  autoStart: true,
  requires: [ISandboxSessions, IToolbarWidgetRegistry],
  optional: [ITranslator],
  activate: (
    app: JupyterFrontEnd,
    model: ISandboxSessions,
    registry: IToolbarWidgetRegistry,
    translator: ITranslator | null
  ) => {
    const trans = (translator ?? nullTranslator).load(DOMAIN);
    registry.addFactory<NotebookPanel>(
      'Notebook',
      'agentlyShield',
      notebook =>
        new ShieldWidget(
          model,
          trans,
          () => void app.commands.execute(CommandIDs.open),
          () => model.link(notebook)
        )
    );
  }
};

export { ISandboxSessions } from './tokens';
export default [sessions, frames, panel, status, toolbar];
