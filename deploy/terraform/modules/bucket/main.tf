# The bastion's two buckets and who may do what there: docs/how-to/run-on-gcp.md, "Buckets" and "Who may do what", with the same
# three roles and lifecycle rules. With inboxes: docs/how-to/share-a-bastion.md. Every grant is on a managed folder or a bucket,
# none on the project.

locals {
  lifecycle = jsondecode(replace(file("${path.module}/../../../lifecycle.json"), "NAME-bastion", var.bastion_name))

  # With inboxes, nobody but the daemon writes jobs/active/, and administrators give and take inboxes.
  open    = length(var.inboxes) == 0
  openers = local.open ? var.users : []
  givers  = local.open ? [] : var.admins
  roles   = { for name in concat(["reader", "writer", "creator"], local.open ? [] : ["admin"]) : name => yamldecode(file("${path.module}/../../../roles/${name}.yaml")) }

  # Folders below the ROOT: who does what there. `when` is a condition.
  lease   = { title = "lease", expression = "resource.name.endsWith(\"/${var.bastion_name}/lease\")" }
  reports = { title = "reports", expression = "resource.name.extract(\"/runs/{run}/reports/\") != \"\"" }
  # Not logs/<job>, which only the daemon writes. Nobody overwrites or deletes a segment.
  segments = { title = "segments", expression = "resource.name.extract(\"/logs/{job}.d/\") != \"\"" }
  grants = concat(
    [
      { folder = "", role = "writer", member = var.daemon, who = "daemon", when = null },
      { folder = "", role = "reader", member = var.worker, who = "worker", when = local.lease },
      { folder = "runs/", role = "reader", member = var.worker, who = "worker", when = null },
      { folder = "runs/", role = "writer", member = var.worker, who = "worker", when = local.reports },
      { folder = "jobs/claims/", role = "reader", member = var.worker, who = "worker", when = null },
      { folder = "jobs/claims/", role = "creator", member = var.worker, who = "worker", when = null },
      { folder = "beats/", role = "writer", member = var.worker, who = "worker", when = null },
      { folder = "logs/", role = "reader", member = var.worker, who = "worker", when = null },
      { folder = "logs/", role = "creator", member = var.worker, who = "worker", when = local.segments },
      { folder = "outputs/", role = "writer", member = var.worker, who = "worker", when = null },
      { folder = "bundles/", role = "reader", member = var.worker, who = "worker", when = null },
      { folder = "agents/", role = "reader", member = var.worker, who = "worker", when = null },
    ],
    flatten([for user in var.users : [
      { folder = "", role = "reader", member = user, who = user, when = null },
      { folder = "benchmarks/", role = "writer", member = user, who = user, when = null },
      { folder = "bundles/", role = "creator", member = user, who = user, when = null },
    ]]),
    flatten([for user in local.openers : [
      { folder = "jobs/active/", role = "writer", member = user, who = user, when = null },
      { folder = "jobs/user_states/", role = "writer", member = user, who = user, when = null },
      { folder = "requests/", role = "creator", member = user, who = user, when = null },
    ]]),
    [for name, member in var.inboxes : { folder = "inbox/${name}/", role = "writer", member = member, who = name, when = null }],
    [for admin in var.admins : { folder = "", role = "writer", member = admin, who = admin, when = null }],
    [for admin in local.givers : { folder = "inbox/", role = "admin", member = admin, who = admin, when = null }],
  )
}

resource "google_project_iam_custom_role" "this" {
  for_each = local.roles

  project     = var.project_id
  role_id     = "bastion${title(each.key)}"
  title       = each.value.title
  description = each.value.description
  permissions = each.value.includedPermissions
}

resource "google_storage_bucket" "this" {
  # checkov:skip=CKV_GCP_78: versions and soft-deleted copies of what is overwritten every 10 s cost more than the machines (run-on-gcp.md)
  # checkov:skip=CKV_GCP_62: access logs of every heartbeat; turn on the project's data access logs if you need them
  name                        = var.bucket
  project                     = var.project_id
  location                    = var.region
  storage_class               = "STANDARD"
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = var.force_destroy

  soft_delete_policy {
    retention_duration_seconds = 0
  }

  dynamic "lifecycle_rule" {
    for_each = local.lifecycle.rule
    content {
      action {
        type = lifecycle_rule.value.action.type
      }
      condition {
        age            = lifecycle_rule.value.condition.age
        matches_prefix = lifecycle_rule.value.condition.matchesPrefix
      }
    }
  }
}

resource "google_storage_bucket" "private" {
  # checkov:skip=CKV_GCP_62: few reads and writes, by the daemon and administrators
  name                        = var.private_bucket
  project                     = var.project_id
  location                    = var.region
  storage_class               = "STANDARD"
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = var.force_destroy

  versioning {
    enabled = true
  }

  soft_delete_policy {
    retention_duration_seconds = 30 * 86400
  }

  lifecycle_rule {
    action {
      type = "Delete"
    }
    condition {
      num_newer_versions = 20
    }
  }
}

resource "google_storage_managed_folder" "this" {
  for_each = toset(concat(local.grants[*].folder, ["jobs/active/", "jobs/user_states/", "requests/"]))

  bucket = google_storage_bucket.this.name
  name   = "${var.bastion_name}/${each.key}"
  # What is in an inbox stays when the inbox goes, because jobs may come from it.
  force_destroy = var.force_destroy || startswith(each.key, "inbox/")
}

resource "google_storage_managed_folder_iam_member" "this" {
  for_each = { for grant in local.grants : "${grant.who} ${grant.role} ${grant.folder}" => grant }

  bucket         = google_storage_bucket.this.name
  managed_folder = google_storage_managed_folder.this[each.value.folder].name
  role           = google_project_iam_custom_role.this[each.value.role].id
  member         = each.value.member

  dynamic "condition" {
    for_each = each.value.when == null ? [] : [each.value.when]
    content {
      title      = condition.value.title
      expression = condition.value.expression
    }
  }
}

resource "google_storage_managed_folder" "private" {
  bucket        = google_storage_bucket.private.name
  name          = "${var.bastion_name}/"
  force_destroy = var.force_destroy
}

resource "google_storage_managed_folder_iam_member" "private" {
  for_each = merge(
    { daemon = { role = "reader", member = var.daemon } },
    { for admin in var.admins : admin => { role = "writer", member = admin } },
  )

  bucket         = google_storage_bucket.private.name
  managed_folder = google_storage_managed_folder.private.name
  role           = google_project_iam_custom_role.this[each.value.role].id
  member         = each.value.member
}

# The secret of the runs, which the daemon makes once: whoever reads it can pass for the hosts of any job.
resource "google_storage_managed_folder" "secrets" {
  bucket        = google_storage_bucket.private.name
  name          = "${google_storage_managed_folder.private.name}secrets/"
  force_destroy = var.force_destroy
}

resource "google_storage_managed_folder_iam_member" "secrets" {
  bucket         = google_storage_bucket.private.name
  managed_folder = google_storage_managed_folder.secrets.name
  role           = google_project_iam_custom_role.this["creator"].id
  member         = var.daemon
}

# Data sets and results of the jobs themselves.
resource "google_storage_bucket_iam_member" "data" {
  for_each = var.data_buckets

  bucket = each.key
  role   = each.value == "write" ? "roles/storage.objectUser" : "roles/storage.objectViewer"
  member = var.worker
}
