"""The admin client's calls about access rules (ACLs): describe, create and delete them.

Creating a rule that exists already has no effect, and neither has deleting a rule that is gone. So a repeated request does no
harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.client.admin.requests import AdminRequests, check_code
from strandline.client.arguments import check_encodes, checked_list
from strandline.client.errors import describe, request_failed
from strandline.client.security_types import Acl, AclFilter, number_of
from strandline.protocol import apis
from strandline.protocol.errors import UsageError, to_code
from strandline.protocol.messages import security as messages
from strandline.protocol.security.acl_names import OPERATION_NAMES, PATTERN_TYPE_NAMES, PERMISSION_NAMES, RESOURCE_TYPE_NAMES

_FILTER_PATTERNS = {**PATTERN_TYPE_NAMES, messages.MATCH_PATTERN: "MATCH"}


class AclCalls(AdminRequests):
    """Describes, creates and deletes access rules. Each call needs a right on the cluster: DESCRIBE, or ALTER."""

    async def describe_acls(self, wanted: AclFilter | None = None, *, timeout_ms: float = 30_000) -> list[Acl]:
        """The access rules that the filter selects; without a filter, all rules. ClusterAuthorizationFailed; RequestFailed with
        `code` SECURITY_DISABLED if the cluster has no authorizer; RequestTimeout."""

        def check(response: messages.DescribeAclsResponse, is_retry: bool) -> None:
            check_code(response.error_code, response.error_message, "DescribeAcls")

        request = messages.DescribeAclsRequest(_filter_of(wanted or AclFilter()))
        deadline = self._deadline(timeout_ms)
        response = await self._ask(apis.DESCRIBE_ACLS, request, messages.DescribeAclsResponse, check, deadline)
        return [acl_of(binding) for binding in response.acls]

    async def create_acls(self, acls: Iterable[Acl], *, timeout_ms: float = 30_000) -> None:
        """Create access rules. They take effect on a broker as soon as it has the metadata, usually within a few milliseconds.

        All rules are tried; the error of the first that was rejected is raised, and says how many were created:
        ClusterAuthorizationFailed; RequestFailed with `code` INVALID_REQUEST for an invalid rule, SECURITY_DISABLED if the
        cluster has no authorizer; RequestTimeout."""
        rules = checked_acls(acls)

        def check(response: messages.CreateAclsResponse, is_retry: bool) -> None:
            failed = [(rule, each) for rule, each in zip(rules, response.results, strict=True) if each.error_code]
            if failed:
                rule, result = failed[0]
                code, done = to_code(result.error_code), len(rules) - len(failed)
                text = f"{rule}: {describe(code, result.error_message)}; {done} of {len(rules)} rules were created"
                raise request_failed(text, api="CreateAcls", code=code)

        request = messages.CreateAclsRequest([binding_of(rule) for rule in rules])
        await self._ask(apis.CREATE_ACLS, request, messages.CreateAclsResponse, check, self._deadline(timeout_ms))

    async def delete_acls(self, filters: Iterable[AclFilter], *, timeout_ms: float = 30_000) -> list[Acl]:
        """Delete all access rules that at least one of these filters selects. Returns the deleted rules. An Acl's `filter`
        selects this rule alone.

        All filters are tried; the error of the first that was rejected is raised: ClusterAuthorizationFailed; RequestFailed with
        `code` INVALID_REQUEST, or SECURITY_DISABLED if the cluster has no authorizer; RequestTimeout."""
        wanted = checked_list("filters", filters)
        for each in wanted:
            if not isinstance(each, AclFilter):
                raise UsageError(f"access rules are selected by an AclFilter, not {each!r}")
        deleted: dict[Acl, None] = {}

        def check(response: messages.DeleteAclsResponse, is_retry: bool) -> None:
            deleted.update((acl_of(binding), None) for result in response.results for binding in result.deleted)
            for result in response.results:
                check_code(result.error_code, result.error_message, "DeleteAcls")

        request = messages.DeleteAclsRequest([_filter_of(each) for each in wanted])
        await self._ask(apis.DELETE_ACLS, request, messages.DeleteAclsResponse, check, self._deadline(timeout_ms))
        return list(deleted)


def checked_acls(acls: Iterable[Acl]) -> list[Acl]:
    """The rules as a list. UsageError unless each of them is an Acl whose names can be encoded in UTF-8."""
    rules = checked_list("acls", acls)
    for rule in rules:
        if not isinstance(rule, Acl):
            raise UsageError(f"an access rule is an Acl, not {rule!r}")
        for what, text in (("a resource", rule.resource_name), ("a principal", rule.principal), ("a host", rule.host)):
            check_encodes(f"the name of {what}", text)
    return rules


def binding_of(rule: Acl) -> messages.AclBinding:
    """The message form of a rule. UsageError for a name that is unknown."""
    return messages.AclBinding(
        number_of("resource type", rule.resource_type, RESOURCE_TYPE_NAMES),
        rule.resource_name,
        number_of("pattern type", rule.pattern_type, PATTERN_TYPE_NAMES),
        rule.principal,
        rule.host,
        number_of("operation", rule.operation, OPERATION_NAMES),
        number_of("permission", rule.permission, PERMISSION_NAMES),
    )


def acl_of(binding: messages.AclBinding) -> Acl:
    """The rule that a message contains."""

    def name(names: Mapping[int, str], number: int) -> str:
        return names.get(number, str(number))

    return Acl(
        principal=binding.principal,
        operation=name(OPERATION_NAMES, binding.operation),
        resource_type=name(RESOURCE_TYPE_NAMES, binding.resource_type),
        resource_name=binding.resource_name,
        pattern_type=name(PATTERN_TYPE_NAMES, binding.pattern_type),
        permission=name(PERMISSION_NAMES, binding.permission_type),
        host=binding.host,
    )


def _filter_of(wanted: AclFilter) -> messages.AclFilter:
    def number(what: str, name: str | None, names: Mapping[int, str]) -> int:
        return messages.ANY_TYPE if name is None else number_of(what, name, names)

    return messages.AclFilter(
        number("resource type", wanted.resource_type, RESOURCE_TYPE_NAMES),
        wanted.resource_name,
        number("pattern type", wanted.pattern_type, _FILTER_PATTERNS),
        wanted.principal,
        wanted.host,
        number("operation", wanted.operation, OPERATION_NAMES),
        number("permission", wanted.permission, PERMISSION_NAMES),
    )
