import { LabIcon } from '@jupyterlab/ui-components';

const shield = (inner: string) =>
  '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">' +
  '<path class="jp-icon3" fill="#616161" d="M12 1 3 5v6c0 5.55 3.84 10.74 9 12 5.16-1.26 9-6.45 9-12V5l-9-4zm0 2.18 7 3.12V11c0 4.52-2.98 8.69-7 9.93-4.02-1.24-7-5.41-7-9.93V6.3l7-3.12z"/>' +
  inner +
  '</svg>';

export const shieldIcon = new LabIcon({
  name: 'agently:shield',
  svgstr: shield('')
});

export const shieldOkIcon = new LabIcon({
  name: 'agently:shield-ok',
  svgstr: shield(
    '<path class="jp-icon3" fill="#616161" d="m10.6 16.2-3.5-3.5 1.4-1.4 2.1 2.1 4.9-4.9 1.4 1.4z"/>'
  )
});

export const shieldWarnIcon = new LabIcon({
  name: 'agently:shield-warn',
  svgstr: shield(
    '<path class="jp-icon3" fill="#616161" d="M11 7h2v6h-2zm0 7.5h2v2h-2z"/>'
  )
});

export const shieldAskIcon = new LabIcon({
  name: 'agently:shield-ask',
  svgstr: shield(
    '<path class="jp-icon3" fill="#616161" d="M11.1 14.4c0-2.6 2-2.5 2-4 0-.6-.5-1.100-1.100-1.100s-1.100.5-1.100 1.100H9.100c0-1.600 1.300-2.900 2.900-2.900s2.900 1.300 2.900 2.900c0 2.200-2.100 2.400-2.100 4zm0 1.100h1.800v1.800h-1.800z"/>'
  )
});

export const eyeIcon = new LabIcon({
  name: 'agently:eye',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24"><path class="jp-icon3" fill="#616161" d="M12 5C7 5 2.700 8.100 1 12.500 2.700 16.900 7 20 12 20s9.300-3.100 11-7.500C21.300 8.100 17 5 12 5zm0 12.500a5 5 0 1 1 0-10 5 5 0 0 1 0 10zm0-8a3 3 0 1 0 0 6 3 3 0 0 0 0-6z"/></svg>'
});

export const doctorIcon = new LabIcon({
  name: 'agently:doctor',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24"><path class="jp-icon3" fill="#616161" d="M2 11h5.200l2.300-6.200h1.900l3.300 10.200 1.900-4H22v2h-4.100l-2.400 5.200h-1.800L10.400 8.400 8.600 13H2z"/></svg>'
});
