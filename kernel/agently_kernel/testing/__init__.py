"""The contract tests for isolation providers, for authors inside and outside of this project.

``pytest -p agently_kernel.testing.plugin --agently-provider=ID`` runs them for a registered provider. Or subclass
:class:`~agently_kernel.testing.provider_contract.ProviderContract` in a test module of your own::

    class TestMyProvider(ProviderContract):
        def make_provider(self):
            return MyProvider()

The tests need Python inside the sandbox. What a provider does not claim is not demanded of it: an axis that its probe
does not report as true is not attacked, and ``trusted_local`` providers run with the policy that admits them.
"""

import pytest

pytest.register_assert_rewrite("agently_kernel.testing.provider_contract")
